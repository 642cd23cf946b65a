"""Where a model runs and in which numbers, and what is said of folders that are no checkpoint of it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.vlm.placement import ON_CPU
from triton_sam.engines.vlm import loading
from triton_sam.engines.vlm.loading import Placement, choose_placement, count_numbers, load_engine
from triton_sam.errors import SetupError, Unavailable
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.settings import Settings

pytestmark = pytest.mark.torch

LLAVA, MOONDREAM2 = get_vlm("vlm:llava"), get_vlm("vlm:moondream2")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """1000 numbers in two files, of two bytes each."""
    for name in ("a", "b"):
        save_file({name: torch.zeros(20, 25, dtype=torch.bfloat16)}, tmp_path / f"{name}.safetensors")
    return tmp_path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda there: monkeypatch.setattr(torch.cuda, "is_available", lambda: there)


def test_numbers_and_bytes_come_from_the_headers(weights: Path) -> None:
    assert count_numbers(weights) == (1000, 2000)


@pytest.mark.parametrize(
    ("there", "settings", "available", "device", "dtype", "size"),
    [
        (False, {}, 4600, "cpu", "float32", 4),
        (False, {}, 4599, "cpu", "bfloat16", 2),
        (True, {}, 0, "cuda", "bfloat16", 2),
        (True, {"vlm_device": "cpu"}, 10_000, "cpu", "float32", 4),
        (True, {"vlm_dtype": "float32"}, 0, "cuda", "float32", 4),
        (False, {"vlm_dtype": "float16"}, 10_000, "cpu", "float16", 2),
        (True, {"vlm_device": "cuda", "vlm_dtype": "float16"}, 0, "cuda", "float16", 2),
    ],
)
def test_placement(
    there: bool,
    settings: dict[str, Any],
    available: int,
    device: str,
    dtype: str,
    size: int,
    weights: Path,
    gpu: Any,
) -> None:
    gpu(there)
    placement = choose_placement(LLAVA, weights, Settings(**settings), lambda _: available)
    assert placement == Placement(device, dtype, int(1000 * size * {"cpu": 1.15, "cuda": 1.4}[device]))


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_code_of_a_checkpoint_keeps_its_numbers(dtype: Any, weights: Path, gpu: Any) -> None:
    gpu(False)
    placement = choose_placement(MOONDREAM2, weights, Settings(vlm_dtype=dtype), lambda _: 0)
    assert placement == Placement("cpu", "as stored", 2300)


def test_a_gpu_that_is_not_there(weights: Path, gpu: Any) -> None:
    gpu(False)
    with pytest.raises(SetupError, match="torch sees no GPU here: set it to auto or cpu"):
        choose_placement(LLAVA, weights, Settings(vlm_device="cuda"), lambda _: 0)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"has no \.safetensors file"):
        count_numbers(tmp_path)


def header(document: Any) -> bytes:
    text = json.dumps(document).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 5) + b"{{{{{",
        pytest.param(header([])),
        pytest.param(header({"a": 1})),
        pytest.param(header({"a": {"dtype": "F32"}})),
        pytest.param(header({"a": {"dtype": "F32", "shape": [2], "data_offsets": 3}})),
        pytest.param(header({"a": {"dtype": "F32", "shape": ["x", "y"], "data_offsets": [0, 8]}})),
    ],
    ids=range(9),
)
def test_a_damaged_header(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(SetupError, match="is damaged: download the checkpoint again"):
        count_numbers(tmp_path)


def one_sentence(error: Exception) -> bool:
    return "\n" not in str(error) and "run `triton-sam pull" in str(error)


def test_an_empty_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="the checkpoint of vlm:llava cannot be loaded") as caught:
        load_engine(LLAVA, tmp_path, ON_CPU, 1)
    assert one_sentence(caught.value)


@pytest.mark.parametrize("adapted", ["vlm:kosmos2", pytest.param("vlm:llava")])
def test_a_checkpoint_of_another_architecture(adapted: str, llava_folder: Path, kosmos2_folder: Path) -> None:
    folder = llava_folder if adapted == "vlm:kosmos2" else kosmos2_folder
    with pytest.raises(SetupError, match=f"the checkpoint of {adapted} cannot be loaded") as caught:
        load_engine(get_vlm(adapted), folder, ON_CPU, 1)
    assert one_sentence(caught.value)


def changed(folder: Path, target: Path, change: Any) -> Path:
    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def lose(weights: dict[str, Any]) -> None:
    for name in [name for name in weights if "layers.1." in name]:
        del weights[name]


def test_a_checkpoint_that_lacks_weights_does_not_guess_them(llava_folder: Path, tmp_path: Path) -> None:
    folder = changed(llava_folder, tmp_path / "lacks", lose)
    with pytest.raises(SetupError, match="the checkpoint of vlm:llava cannot be loaded"):
        load_engine(LLAVA, folder, ON_CPU, 1)


def test_a_cut_file_is_one_sentence(llava_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(llava_folder, folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(SetupError, match="the checkpoint of vlm:llava cannot be loaded") as caught:
        load_engine(LLAVA, folder, ON_CPU, 1)
    assert one_sentence(caught.value)


def test_pickles_are_not_read(llava_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pickles"
    shutil.copytree(llava_folder, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(SetupError):
        load_engine(LLAVA, folder, ON_CPU, 1)


def test_a_gpu_without_room(llava_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loading.transformers.AutoModelForImageTextToText, "from_pretrained", full)
    with pytest.raises(Unavailable, match="does not fit into the GPU's memory"):
        load_engine(LLAVA, llava_folder, ON_CPU, 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_has_the_numbers_that_were_chosen(dtype: str, llava_folder: Path) -> None:
    engine = load_engine(LLAVA, llava_folder, dataclasses.replace(ON_CPU, dtype=dtype), 3)
    assert engine.batch == 3
    numbers, _ = count_numbers(llava_folder)
    assert engine.nbytes == pytest.approx(numbers * (4 if dtype == "float32" else 2), rel=0.01)
