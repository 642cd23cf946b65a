"""Which of a version's ONNX files are served."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from triton_sam.core import cpu_features
from triton_sam.engines import onnx
from triton_sam.engines.loading import load_engine
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import ModelSpec, Precision
from triton_sam.settings import Settings

FILES = ("encoder.onnx", "decoder.onnx", "encoder_cpu_float32.onnx", "decoder_cpu.onnx")
EIGHT_BITS, OLDER = "encoder_cpu_8bit.onnx", "encoder_cpu.onnx"
SPEC = get_spec("sam2:tiny")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the graphs that an engine was made of, and what it says about its encoder."""
    names: list[str] = []

    class Engine:
        def __init__(self, _spec: Any, encoder: Path, decoder: Path, *, encoder_numbers: str, **_: Any) -> None:
            names.extend((encoder.name, decoder.name, encoder_numbers))

        def warm_up(self) -> None: ...

    monkeypatch.setattr(onnx, "OnnxEngine", Engine)
    monkeypatch.setattr(cpu_features, "has_dot_products", lambda: True)
    return names


def load(folder: Path, files: tuple[str, ...], spec: ModelSpec = SPEC, **values: Any) -> None:
    for name in files:
        (folder / name).touch()
    load_engine(spec, folder, Settings(engine="onnx", **values))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, ["encoder_cpu_float32.onnx", "decoder_cpu.onnx", "float32"]),
        ({"cpu_encoder": False}, ["encoder.onnx", "decoder_cpu.onnx", "float32"]),
        ({"cpu_encoder": False, "fast_decoder": False}, ["encoder.onnx", "decoder.onnx", "float32"]),
    ],
    ids=str,
)
def test_on_a_cpu(values: dict[str, Any], wanted: list[str], tmp_path: Path, opened: list[str]) -> None:
    load(tmp_path, FILES, device="cpu", **values)
    assert opened == wanted


@pytest.mark.parametrize(
    ("file", "flag", "eight_bit"),
    [
        (EIGHT_BITS, None, True),  # `setup --fast` wrote it
        (EIGHT_BITS, True, True),
        (EIGHT_BITS, False, False),
        (OLDER, None, False),  # nobody asked for it
        (OLDER, True, True),
        (OLDER, False, False),
    ],
)
def test_8_bits_are_served_where_they_were_asked_for(
    file: str, flag: bool | None, eight_bit: bool, tmp_path: Path, opened: list[str]
) -> None:
    load(tmp_path, (*FILES, file), device="cpu", fast_encoder=flag)
    wanted = (file, "8-bit") if eight_bit else ("encoder_cpu_float32.onnx", "float32")
    assert (opened[0], opened[2]) == wanted


def test_8_bits_that_are_not_there(tmp_path: Path, opened: list[str], caplog: pytest.LogCaptureFixture) -> None:
    load(tmp_path, FILES, device="cpu", fast_encoder=True)
    assert opened[2] == "float32"
    assert "triton-sam setup sam2:tiny --fast" in caplog.text


@pytest.mark.parametrize(
    ("precision", "told"), [(Precision.FP32, "float32"), (Precision.FP16, "float16"), (Precision.INT8, "8-bit")]
)
def test_an_export_tells_its_precision(precision: Precision, told: str, tmp_path: Path, opened: list[str]) -> None:
    large = get_spec("sam2.1:large")
    spec = dataclasses.replace(large, graphs=dataclasses.replace(large.graphs, precision=precision))
    load(tmp_path, FILES[:2], spec, device="cpu")
    assert opened == ["encoder.onnx", "decoder.onnx", told]


def test_older_set_ups_have_the_plain_graphs_alone(
    tmp_path: Path, opened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, FILES[:2], device="cpu")
    assert opened == ["encoder.onnx", "decoder.onnx", "float32"]
    assert caplog.records == []


def test_a_processor_without_8_bit_products_gets_float32(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu_features, "has_dot_products", lambda: False)
    load(tmp_path, (*FILES, EIGHT_BITS), device="cpu", fast_encoder=True)
    assert opened == ["encoder_cpu_float32.onnx", "decoder_cpu.onnx", "float32"]
    assert "no 8-bit dot products" in caplog.text


def test_a_gpu_gets_the_plain_graphs(tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "choose_providers", lambda *_, **__: ("CUDAExecutionProvider", "CPUExecutionProvider"))
    load(tmp_path, (*FILES, EIGHT_BITS))
    assert opened == ["encoder.onnx", "decoder.onnx", "float32"]
