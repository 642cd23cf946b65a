"""Reading checkpoints: every format, damaged files, code in pickles, Hugging Face folders."""

from __future__ import annotations

import os
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.export import official
from tests.unit.export.checkpoint_files import (
    SPEC,
    State,
    Writer,
    assert_equal,
    official_state,
    refused,
    write_folder,
    write_nested,
    write_nested_twice,
    write_old_format,
    write_pt,
    write_safetensors,
    write_sharded,
)
from tests.unit.export.families import EACH_FAMILY
from tests.unit.export.small import small_network, small_spec
from triton_sam.errors import InvalidInput
from triton_sam.export.checkpoint import load_weights, read_checkpoint
from triton_sam.export.random_weights import save_as_folder
from triton_sam.networks.segmenters import build

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def state() -> State:
    return official_state()


@pytest.mark.parametrize(
    "write",
    [write_pt, write_nested, write_nested_twice, write_old_format, write_safetensors, write_folder, write_sharded],
)
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
def test_half_precision_is_upcast(kind: torch.dtype, state: State, tmp_path: Path) -> None:
    halves = {name: tensor.to(kind) for name, tensor in state.items()}
    network = small_network(SPEC)
    load_weights(network, write_safetensors(halves, tmp_path), SPEC)
    assert {tensor.dtype for tensor in network.state_dict().values()} == {torch.float32}
    assert torch.equal(network.mask_decoder.iou_token.weight, halves["mask_decoder.iou_token.weight"].float())


def test_values_that_are_no_tensors_are_ignored(state: State, tmp_path: Path) -> None:
    torch.save({**state, "epoch": 3, "note": "x", 7: torch.zeros(2)}, tmp_path / "a.pt")
    assert_equal(read_checkpoint(tmp_path / "a.pt"), state)


def test_the_head_of_the_object_score_may_be_missing(tmp_path: Path) -> None:
    """Files for images alone leave it out, and no mask depends on it."""
    spec = small_spec("sam2.1:tiny")
    shapes = official.sam2(spec.architecture, video=False)
    kept = {key: shape for key, shape in shapes.items() if "pred_obj_score_head" not in key}
    assert len(shapes) - len(kept) == 6
    load_weights(small_network(spec), write_pt(official.tensors(kept), tmp_path), spec)


# what cannot be read


@pytest.mark.parametrize("write", [write_pt, write_nested, write_old_format, write_safetensors])
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
def test_every_damaged_file_raises_invalid_input(modern: bool, tmp_path: Path) -> None:
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
    folder = write_sharded(state, tmp_path)
    part = folder / "model-00002-of-00002.safetensors"
    part.write_bytes(part.read_bytes()[:-100])
    assert refused(folder).startswith("model-00002-of-00002.safetensors is damaged or truncated")


def test_a_folder_with_a_part_missing(state: State, tmp_path: Path) -> None:
    folder = write_sharded(state, tmp_path)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert refused(folder) == f"{folder} has 1 of the 2 parts of its weights: download the others too"
