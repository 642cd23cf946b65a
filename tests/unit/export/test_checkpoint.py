from __future__ import annotations

import dataclasses
import json
import os
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.unit.export import official
from tests.unit.export.families import EACH_FAMILY
from tests.unit.export.small import small_network, small_spec, state_of
from triton_sam.errors import InvalidInput
from triton_sam.export import checkpoint as checkpoint_module
from triton_sam.export import run
from triton_sam.export.checkpoint import check_variant, fill, load_weights, read_checkpoint
from triton_sam.export.checkpoint_keys import map_keys
from triton_sam.export.random_weights import save_as_folder
from triton_sam.export.run import AUTO, ExportOptions, export_checkpoint
from triton_sam.models.catalog import CATALOG, get_spec
from triton_sam.models.specs import ModelSpec
from triton_sam.networks.segmenters import build

pytestmark = pytest.mark.torch

SPEC = small_spec("sam1:vit_b")
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def state() -> State:
    """A small official checkpoint of SAM 1."""
    return official.tensors(official.sam1(SPEC.architecture, SPEC.side))


def refused(path: Path, spec: ModelSpec | str = SPEC) -> str:
    """The one sentence of an export's InvalidInput; what was there before is there after, and nothing else."""
    before = sorted(path.parent.rglob("*"))
    folder = path.parent / "out"
    with pytest.raises(InvalidInput) as caught:
        export_checkpoint(spec, path, folder, ExportOptions(image_size=256))
    assert sorted(path.parent.rglob("*")) == before
    said = str(caught.value)
    assert "\n" not in said
    assert "Traceback" not in said
    assert len(said) < 600
    return said


def assert_equal(found: State, wanted: State) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


# what can be read

Writer = Callable[[State, Path], Path]


def _pt(state: State, folder: Path) -> Path:
    torch.save(state, folder / "flat.pt")
    return folder / "flat.pt"


def _nested(state: State, folder: Path) -> Path:
    torch.save({"model": state, "epoch": 3}, folder / "nested.pt")
    return folder / "nested.pt"


def _nested_twice(state: State, folder: Path) -> Path:
    torch.save({"state_dict": {"model": state}}, folder / "twice.pth")
    return folder / "twice.pth"


def _old_format(state: State, folder: Path) -> Path:
    torch.save(state, folder / "old.pth", _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(folder / "old.pth")
    return folder / "old.pth"


def _safetensors(state: State, folder: Path) -> Path:
    save_file(state, folder / "plain.safetensors")
    return folder / "plain.safetensors"


def _folder(state: State, folder: Path, parts: int = 1) -> Path:
    target = folder / "hub"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"model_type": "sam"}))
    for part in range(parts):
        name = "model.safetensors" if parts == 1 else f"model-{part + 1:05}-of-{parts:05}.safetensors"
        save_file(dict(list(state.items())[part::parts]), target / name)
    return target


def _sharded(state: State, folder: Path) -> Path:
    return _folder(state, folder, parts=2)


@pytest.mark.parametrize("write", [_pt, _nested, _nested_twice, _old_format, _safetensors, _folder, _sharded])
def test_every_format(write: Writer, state: State, tmp_path: Path) -> None:
    path = write(state, tmp_path)
    assert_equal(read_checkpoint(path), state)
    network = small_network(SPEC)
    weights = load_weights(network, path, SPEC)
    assert weights.unused == []
    assert torch.equal(network.vision_encoder.pos_embed, state["image_encoder.pos_embed"])


@pytest.mark.parametrize("model_id", EACH_FAMILY)
def test_a_folder_as_transformers_writes_it(model_id: str, tmp_path: Path) -> None:
    spec = small_spec(model_id)
    network = small_network(spec)
    if model_id == "sam1:mobile":  # transformers' class, but not its encoder
        save_as_folder(network, tmp_path)
    else:
        network.save_pretrained(tmp_path)
    again = build(spec.architecture, spec.side)
    load_weights(again, tmp_path, spec)
    assert_equal(again.state_dict(), network.state_dict())


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_made_whole(kind: torch.dtype, state: State, tmp_path: Path) -> None:
    halves = {name: tensor.to(kind) for name, tensor in state.items()}
    network = small_network(SPEC)
    load_weights(network, _safetensors(halves, tmp_path), SPEC)
    assert {tensor.dtype for tensor in network.state_dict().values()} == {torch.float32}
    assert torch.equal(network.mask_decoder.iou_token.weight, halves["mask_decoder.iou_token.weight"].float())


def test_what_is_no_tensor_is_passed_over(state: State, tmp_path: Path) -> None:
    torch.save({**state, "epoch": 3, "note": "x", 7: torch.zeros(2)}, tmp_path / "a.pt")
    assert_equal(read_checkpoint(tmp_path / "a.pt"), state)


def test_the_head_of_the_object_score_may_be_missing(tmp_path: Path) -> None:
    """Files for images alone leave it out, and no mask depends on it."""
    spec = small_spec("sam2.1:tiny")
    shapes = official.sam2(spec.architecture, video=False)
    kept = {key: shape for key, shape in shapes.items() if "pred_obj_score_head" not in key}
    assert len(shapes) - len(kept) == 6
    load_weights(small_network(spec), _pt(official.tensors(kept), tmp_path), spec)


# what cannot be read


@pytest.mark.parametrize("write", [_pt, _nested, _old_format, _safetensors])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_file_that_was_cut(write: Writer, share: float, state: State, tmp_path: Path) -> None:
    path = write(state, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert refused(path).startswith(f"{path.name} is damaged or truncated (")


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
@pytest.mark.parametrize(
    "content",
    [
        b"<!DOCTYPE html><html><body>404</body></html>" * 20,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 375042383\n",
        bytes(1000),
    ],
    ids=["page", "pointer", "zeros"],
)
def test_something_else_under_the_name(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"sam_vit_b{suffix}"
    path.write_bytes(content)
    assert refused(path).startswith(f"sam_vit_b{suffix} is damaged or truncated ({len(content):,} bytes)")


@pytest.mark.parametrize("modern", [True, False])
def test_no_damage_whatever_escapes_as_another_error(modern: bool, tmp_path: Path) -> None:
    tensors = {f"key{number}": torch.full((5, 7), float(number)) for number in range(4)}
    path = tmp_path / "x.pt"
    torch.save(tensors, path, _use_new_zipfile_serialization=modern)
    whole = path.read_bytes()
    chance = random.Random(1)
    refusals = 0
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            read_checkpoint(path)
        except InvalidInput:
            refusals += 1
    assert refusals > 50


class Payload:
    """Runs a command where it is unpickled without care."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("modern", [True, False])
def test_code_in_a_pickle_is_not_run(modern: bool, state: State, tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    path = tmp_path / "evil.pt"
    torch.save({"model": state, "extra": Payload(mark)}, path, _use_new_zipfile_serialization=modern)
    said = refused(path)
    assert said.startswith("evil.pt holds more than tensors (code or objects), and only tensors are loaded")
    assert ".safetensors" in said
    assert not mark.exists()


@pytest.mark.parametrize("protocol", [2, 4])
def test_code_in_a_plain_pickle_is_not_run(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = tmp_path / "evil.pth"
    path.write_bytes(pickle.dumps(Payload(mark), protocol=protocol))
    refused(path)
    assert not mark.exists()
    pickle.loads(path.read_bytes())
    assert mark.exists()  # it would have


@pytest.mark.parametrize("modern", [True, False])
def test_a_whole_module_is_refused(modern: bool, tmp_path: Path) -> None:
    path = tmp_path / "module.pt"
    torch.save(torch.nn.Linear(3, 2), path, _use_new_zipfile_serialization=modern)
    assert "holds more than tensors" in refused(path)


def test_torchscript_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scripted.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(torch.nn.Linear(3, 2), torch.zeros(1, 3)), str(path))
    assert "holds more than tensors" in refused(path)


@pytest.mark.parametrize(
    "content", [{}, {"model": {}}, {"epoch": 3}, {7: torch.zeros(2)}, [torch.zeros(2)], torch.zeros(2)], ids=str
)
def test_no_named_tensors(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "bare.pt"
    torch.save(content, path)
    assert refused(path) == "bare.pt holds no named tensors: it is not a checkpoint of a model"


def test_a_missing_file(tmp_path: Path) -> None:
    said = refused(tmp_path / "nowhere.pt")
    assert said.startswith(f"there is no checkpoint {tmp_path / 'nowhere.pt'}")
    assert ".safetensors" in said


@pytest.mark.parametrize("name", ["model.onnx", "model.bin", "model"])
def test_a_wrong_suffix(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert refused(tmp_path / name).startswith(f"{name} is not a .pt, .pth or .safetensors file")


# folders


def hub_folder(tmp_path: Path, config: str | None, *files: str) -> Path:
    folder = tmp_path / "hub"
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(config)
    for name in files:
        save_file({"weight": torch.zeros(2)}, folder / name)
    return folder


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path, None, "model.safetensors")
    assert refused(folder).startswith(f"{folder} has no config.json")


@pytest.mark.parametrize("config", ["", "{", "{}", "[]", "3", '"sam"', '{"model_type"'])
def test_a_folder_whose_config_says_nothing(config: str, tmp_path: Path) -> None:
    folder = hub_folder(tmp_path, config, "model.safetensors")
    assert "names no model_type" in refused(folder)


def test_a_folder_whose_config_is_no_text(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path, None, "model.safetensors")
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    assert "names no model_type" in refused(folder)


def test_a_folder_of_another_model(tmp_path: Path) -> None:
    said = refused(hub_folder(tmp_path, '{"model_type": "bert"}', "model.safetensors"))
    assert said.endswith("holds a model of type 'bert', not one of the SAM families")


def test_a_folder_with_pickled_weights_only(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path, '{"model_type": "sam"}')
    torch.save({"weight": torch.zeros(2)}, folder / "pytorch_model.bin")
    assert refused(folder) == f"{folder} has no model.safetensors: pickled weights (.bin) are not read"


def test_a_folder_with_a_damaged_part(state: State, tmp_path: Path) -> None:
    folder = _sharded(state, tmp_path)
    part = folder / "model-00002-of-00002.safetensors"
    part.write_bytes(part.read_bytes()[:-100])
    assert refused(folder).startswith("model-00002-of-00002.safetensors is damaged or truncated")


def test_a_folder_with_a_part_missing(state: State, tmp_path: Path) -> None:
    folder = _sharded(state, tmp_path)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert refused(folder) == f"{folder} has 1 of the 2 parts of its weights: download the others too"


# keys that do not fit


def test_a_renamed_key(state: State, tmp_path: Path) -> None:
    changed = dict(state)
    changed["image_encoder.neck.9.weight"] = changed.pop("image_encoder.neck.0.weight")
    assert refused(_pt(changed, tmp_path)) == (
        "the checkpoint's keys do not fit the model: 1 missing (vision_encoder.neck.conv1.weight); "
        "1 unknown (image_encoder.neck.9.weight)"
    )


def test_a_misshapen_tensor(state: State, tmp_path: Path) -> None:
    changed = state | {"mask_decoder.mask_tokens.weight": torch.zeros(5, 256)}
    assert refused(_pt(changed, tmp_path)) == (
        "the checkpoint's keys do not fit the model: "
        "1 misshapen (mask_decoder.mask_tokens.weight is [5, 256] instead of [4, 256])"
    )


def test_all_problems_in_one_error(state: State, tmp_path: Path) -> None:
    changed = {key: tensor for key, tensor in state.items() if ".mlp." not in key or "transformer" in key}
    changed |= {"novelty": torch.zeros(1), "prompt_encoder.no_mask_embed.weight": torch.zeros(1, 3)}
    said = refused(_pt(changed, tmp_path))
    assert "8 missing (vision_encoder.layers.0.mlp.lin1.weight, " in said
    assert said.count("mlp.") == 5  # of many keys the first ones are named
    assert ", ...); 1 unknown (novelty); 1 misshapen (prompt_encoder.no_mask_embed.weight is [1, 3]" in said


def test_a_misshapen_part_of_a_joined_tensor_is_named_by_its_key(tmp_path: Path) -> None:
    spec = small_spec("sam3:tracker")
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


@pytest.mark.parametrize("model_id", CATALOG)
def test_the_right_id_is_accepted_and_every_wrong_one_told(model_id: str) -> None:
    weights = full(model_id)
    check_variant(weights, get_spec(model_id))
    for other in CATALOG:
        if other != model_id:
            assert complaint(weights, other) == (f"this checkpoint is {model_id}, not {other}: export it as {model_id}")


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
    path = _pt({"fc.weight": torch.zeros(3, 3)}, tmp_path)
    assert "network without a SAM encoder, not sam1:vit_b" in refused(path)
    assert refused(path, AUTO) == "this checkpoint is not a model of the catalogue: its encoder has another shape"


def test_the_wrong_id_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {model_id: small_spec(model_id) for model_id in ("sam2:tiny", "sam2.1:tiny")}
    monkeypatch.setattr(checkpoint_module, "CATALOG", rows)
    path = _nested(official.tensors(official.sam2(rows["sam2.1:tiny"].architecture)), tmp_path)
    said = refused(path, rows["sam2:tiny"])
    assert said == "this checkpoint is sam2.1:tiny, not sam2:tiny: export it as sam2.1:tiny"


@pytest.mark.parametrize(
    ("generation", "video", "found"), [("sam2", True, "sam2"), ("sam2.1", True, "sam2.1"), ("sam2", False, "sam2.1")]
)
def test_auto_asks_the_checkpoint(
    generation: str, video: bool, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {model_id: small_spec(model_id) for model_id in ("sam1:vit_b", "sam2.1:tiny", "sam2:tiny")}
    monkeypatch.setattr(checkpoint_module, "CATALOG", rows)
    shapes = official.sam2(rows[f"{generation}:tiny"].architecture, video=video)
    path = _pt(official.tensors(shapes), tmp_path)
    asked: list[ModelSpec] = []

    def stop(_network: object, spec: ModelSpec, *_: object) -> None:
        asked.append(spec)
        raise InvalidInput("enough")

    monkeypatch.setattr(run, "write_graphs", stop)
    assert refused(path, AUTO) == "enough"
    assert asked == [rows[f"{found}:tiny"]]


# another image size


def resized(state: State, side: int) -> Any:
    """SAM 1 filled with a checkpoint of 256 pixels, at another size."""
    network = build(SPEC.architecture, side)
    fill(network, map_keys(state))
    return network


@pytest.mark.parametrize("side", [128, 208, 512])
def test_position_tables_are_stretched(side: int, state: State) -> None:
    network = resized(state, side)
    grid = side // 16
    assert network.vision_encoder.pos_embed.shape == (1, grid, grid, 64)
    windowed, whole = network.vision_encoder.layers
    for axis in ("rel_pos_h", "rel_pos_w"):
        assert getattr(whole.attn, axis).shape == (2 * grid - 1, 32)
        assert torch.equal(getattr(windowed.attn, axis), state[f"image_encoder.blocks.0.attn.{axis}"])


@pytest.mark.parametrize("side", [128, 208, 512])
def test_a_constant_table_stays_constant(side: int, state: State) -> None:
    constant = torch.arange(64.0)
    line = torch.arange(32.0)
    tables = {
        "image_encoder.pos_embed": constant.expand(1, 16, 16, 64).clone(),
        "image_encoder.blocks.1.attn.rel_pos_h": line.expand(31, 32).clone(),
    }
    network = resized(state | tables, side)
    grid = side // 16
    torch.testing.assert_close(network.vision_encoder.pos_embed.data, constant.expand(1, grid, grid, 64))
    torch.testing.assert_close(network.vision_encoder.layers[1].attn.rel_pos_h.data, line.expand(2 * grid - 1, 32))


@pytest.mark.parametrize("side", [128, 208, 512])
def test_a_ramp_stays_a_ramp(side: int, state: State) -> None:
    down, across = torch.arange(16.0).view(16, 1), torch.arange(16.0).view(1, 16)
    table = torch.zeros(1, 16, 16, 64)
    table[0, :, :, 0], table[0, :, :, 1] = down.expand(16, 16), across.expand(16, 16)
    offsets = torch.arange(-15.0, 16.0).view(31, 1).expand(31, 32).clone()
    ramps = {"image_encoder.pos_embed": table, "image_encoder.blocks.1.attn.rel_pos_w": offsets}
    network = resized(state | ramps, side)
    stretched = network.vision_encoder.pos_embed[0]
    inner = stretched[2:-2, 2:-2]  # a cubic bends at the border
    assert (inner[..., 0].diff(dim=0) > 0).all()
    assert (inner[..., 1].diff(dim=1) > 0).all()
    torch.testing.assert_close(stretched[..., 0], stretched[..., 1].T)
    centres = (torch.arange(side // 16) + 0.5) * 256 / side - 0.5  # where the new cells lie among the old ones
    assert (stretched[:, 0, 0] - centres)[2:-2].abs().max() < 0.09
    positions = network.vision_encoder.layers[1].attn.rel_pos_w
    assert (positions.diff(dim=0) >= 0).all()
    torch.testing.assert_close(positions, -positions.flip(0))


def test_the_size_of_training_keeps_its_tables(state: State) -> None:
    network = resized(state, 256)
    assert torch.equal(network.vision_encoder.pos_embed, state["image_encoder.pos_embed"])
    assert torch.equal(network.vision_encoder.layers[1].attn.rel_pos_h, state["image_encoder.blocks.1.attn.rel_pos_h"])


def test_a_table_of_another_width_is_not_stretched(state: State) -> None:
    changed = state | {"image_encoder.pos_embed": torch.zeros(1, 8, 8, 63)}
    with pytest.raises(InvalidInput, match=r"1 misshapen \(image_encoder\.pos_embed is \[1, 8, 8, 63\]"):
        resized(changed, 256)


@pytest.mark.parametrize("model_id", ["sam1:mobile", "sam2.1:tiny", "sam3:tracker"])
def test_other_networks_have_no_table_of_the_image_size(model_id: str) -> None:
    """Their weights fit every size as they are."""
    spec = small_spec(model_id)
    network = small_network(spec)
    larger = build(spec.architecture, 2 * spec.side)
    fill(larger, map_keys(state_of(network)))
    assert_equal(larger.state_dict(), network.state_dict())


@pytest.mark.parametrize(
    ("model_id", "side", "step"),
    [
        ("sam1:vit_b", 1000, 16),
        ("sam1:mobile", 1040, 32),
        ("sam2.1:tiny", 1040, 32),
        ("sam3:tracker", 1024, 14),
        ("sam1:vit_b", 112, 16),
        ("sam1:vit_b", 0, 16),
        ("sam1:vit_b", -1024, 16),
        ("sam1:vit_b", 8192, 16),
    ],
)
def test_a_size_that_does_not_suit(model_id: str, side: int, step: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        export_checkpoint(get_spec(model_id), tmp_path / "x.pt", tmp_path / "out", ExportOptions(image_size=side))
    assert str(caught.value) == (
        f"--image-size {side} does not suit this model: use a multiple of {step} from {8 * step} to 4096"
    )
