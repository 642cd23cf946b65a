"""Checkpoints that do not fit: keys that are missing or misshapen, and the id of another model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.export import official
from tests.unit.export.checkpoint_files import (
    SPEC,
    State,
    assert_equal,
    official_state,
    refused,
    write_nested,
    write_pt,
)
from tests.unit.export.small import small_network, small_spec, state_of
from triton_sam.errors import InvalidInput
from triton_sam.export import checkpoint as checkpoint_module
from triton_sam.export import run
from triton_sam.export.checkpoint import check_variant, fill
from triton_sam.export.checkpoint_keys import map_keys
from triton_sam.export.run import AUTO
from triton_sam.models.catalog import CATALOG, get_spec
from triton_sam.models.specs import ModelSpec

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def state() -> State:
    return official_state()


def test_a_renamed_key(state: State, tmp_path: Path) -> None:
    changed = dict(state)
    changed["image_encoder.neck.9.weight"] = changed.pop("image_encoder.neck.0.weight")
    assert refused(write_pt(changed, tmp_path)) == (
        "the checkpoint's keys do not fit the model: 1 missing (vision_encoder.neck.conv1.weight); "
        "1 unknown (image_encoder.neck.9.weight)"
    )


def test_a_misshapen_tensor(state: State, tmp_path: Path) -> None:
    changed = state | {"mask_decoder.mask_tokens.weight": torch.zeros(5, 256)}
    assert refused(write_pt(changed, tmp_path)) == (
        "the checkpoint's keys do not fit the model: "
        "1 misshapen (mask_decoder.mask_tokens.weight is [5, 256] instead of [4, 256])"
    )


def test_all_problems_in_one_error(state: State, tmp_path: Path) -> None:
    changed = {key: tensor for key, tensor in state.items() if ".mlp." not in key or "transformer" in key}
    changed |= {"novelty": torch.zeros(1), "prompt_encoder.no_mask_embed.weight": torch.zeros(1, 3)}
    said = refused(write_pt(changed, tmp_path))
    assert "8 missing (vision_encoder.layers.0.mlp.lin1.weight, " in said
    assert said.count("mlp.") == 5  # of many keys the first ones are named
    assert ", ...); 1 unknown (novelty); 1 misshapen (prompt_encoder.no_mask_embed.weight is [1, 3]" in said


def test_a_misshapen_part_of_a_joined_tensor_is_named_by_its_key(tmp_path: Path) -> None:
    spec = small_spec("sam3:full")
    shapes = official.sam3(spec.architecture)
    key = "detector.backbone.vision_backbone.trunk.blocks.0.attn.qkv.bias"
    state = official.tensors(shapes | {key: (3 * 65,)})
    with pytest.raises(InvalidInput, match=rf"3 misshapen \({key} is \[65\] instead of \[64\]"):
        fill(small_network(spec), map_keys(state))


def test_a_network_is_left_as_it_was_where_keys_do_not_fit(state: State) -> None:
    network = small_network(SPEC)
    before = state_of(network)
    with pytest.raises(InvalidInput):
        fill(network, map_keys(state | {"novelty": torch.zeros(1)}))
    assert_equal(network.state_dict(), before)


# the wrong id


def full(model_id: str, *, video: bool = True) -> Any:
    """The mapped keys of an official checkpoint, without values."""
    spec = get_spec(model_id)
    shapes = (
        official.sam2(spec.architecture, video=video)
        if spec.family == "sam2"
        else official.checkpoint(spec.architecture, spec.side)
    )
    return map_keys(official.without_values(shapes))


def complaint(weights: Any, model_id: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        check_variant(weights, get_spec(model_id))
    return str(caught.value)


#: Models of which checkpoints are published.
PUBLISHED = [model_id for model_id, spec in CATALOG.items() if spec.assembly is None]


@pytest.mark.parametrize("model_id", PUBLISHED)
def test_the_right_id_is_accepted_and_every_wrong_one_refused(model_id: str) -> None:
    weights = full(model_id)
    check_variant(weights, get_spec(model_id))
    for other in PUBLISHED:
        if other != model_id:
            assert complaint(weights, other) == (f"this checkpoint is {model_id}, not {other}: export it as {model_id}")


def test_a_checkpoint_with_its_own_memory_is_accepted_for_a_model_that_is_put_together() -> None:
    check_variant(full("sam2.1:tiny"), get_spec("sam2:tiny_video"))
    for other in ("sam2:tiny", "sam2.1:small"):
        assert complaint(full(other), "sam2:tiny_video").startswith(f"this checkpoint is {other}, not sam2:tiny_video")


def test_an_image_mode_file_is_accepted_as_both_generations() -> None:
    weights = full("sam2:tiny", video=False)
    check_variant(weights, get_spec("sam2:tiny"))
    check_variant(weights, get_spec("sam2.1:tiny"))
    assert complaint(weights, "sam2:large") == (
        "this checkpoint is sam2.1:tiny or sam2:tiny, not sam2:large: export it as sam2.1:tiny"
    )


def test_a_network_of_no_row() -> None:
    architecture = dataclasses.replace(get_spec("sam1:vit_b").architecture, width=384, heads=6)
    weights = map_keys(official.without_values(official.sam1(architecture, 1024)))
    assert complaint(weights, "sam1:vit_b") == (
        "this checkpoint is a vit encoder of width 384 with 12 blocks, "
        "not sam1:vit_b nor another model of the catalogue"
    )


def test_no_network_of_ours_at_all(tmp_path: Path) -> None:
    path = write_pt({"fc.weight": torch.zeros(3, 3)}, tmp_path)
    assert "network without a SAM encoder, not sam1:vit_b" in refused(path)
    assert refused(path, AUTO) == "this checkpoint is not a model of the catalogue: its encoder has another shape"


def test_a_wrong_id_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {model_id: small_spec(model_id) for model_id in ("sam2:tiny", "sam2.1:tiny")}
    monkeypatch.setattr(checkpoint_module, "CATALOG", rows)
    path = write_nested(official.tensors(official.sam2(rows["sam2.1:tiny"].architecture)), tmp_path)
    said = refused(path, rows["sam2:tiny"])
    assert said == "this checkpoint is sam2.1:tiny, not sam2:tiny: export it as sam2.1:tiny"


@pytest.mark.parametrize(
    ("generation", "video", "found"), [("sam2", True, "sam2"), ("sam2.1", True, "sam2.1"), ("sam2", False, "sam2.1")]
)
def test_auto_recognises_the_checkpoint(
    generation: str, video: bool, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {model_id: small_spec(model_id) for model_id in ("sam1:vit_b", "sam2.1:tiny", "sam2:tiny")}
    monkeypatch.setattr(checkpoint_module, "CATALOG", rows)
    shapes = official.sam2(rows[f"{generation}:tiny"].architecture, video=video)
    path = write_pt(official.tensors(shapes), tmp_path)
    asked: list[ModelSpec] = []

    def stop(_network: object, spec: ModelSpec, *_: object) -> None:
        asked.append(spec)
        raise InvalidInput("enough")

    monkeypatch.setattr(run, "write_graphs", stop)
    assert refused(path, AUTO) == "enough"
    assert asked == [rows[f"{found}:tiny"]]
