"""Which of a version's ONNX files are served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from triton_sam.catalog import get_spec
from triton_sam.engines import onnx
from triton_sam.engines.loading import load_engine
from triton_sam.export import eight_bits
from triton_sam.settings import Settings

FILES = ("encoder.onnx", "decoder.onnx", "encoder_cpu.onnx", "decoder_cpu.onnx")
SPEC = get_spec("sam2:tiny")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the graphs that an engine was made of."""
    names: list[str] = []

    class Engine:
        def __init__(self, _spec: Any, encoder: Path, decoder: Path, **_: Any) -> None:
            names.extend((encoder.name, decoder.name))

        def warm_up(self) -> None: ...

    monkeypatch.setattr(onnx, "OnnxEngine", Engine)
    monkeypatch.setattr(eight_bits, "has_dot_products", lambda: True)
    return names


def load(folder: Path, files: tuple[str, ...], **values: Any) -> None:
    for name in files:
        (folder / name).touch()
    load_engine(SPEC, folder, Settings(engine="onnx", **values))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, ["encoder_cpu.onnx", "decoder_cpu.onnx"]),
        ({"fast_encoder": False}, ["encoder.onnx", "decoder_cpu.onnx"]),
        ({"fast_encoder": False, "fast_decoder": False}, ["encoder.onnx", "decoder.onnx"]),
    ],
    ids=str,
)
def test_on_a_cpu(values: dict[str, Any], wanted: list[str], tmp_path: Path, opened: list[str]) -> None:
    load(tmp_path, FILES, device="cpu", **values)
    assert opened == wanted


def test_older_set_ups_have_the_plain_graphs_alone(
    tmp_path: Path, opened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, FILES[:2], device="cpu")
    assert opened == ["encoder.onnx", "decoder.onnx"]
    assert caplog.records == []


def test_a_processor_without_8_bit_products_gets_the_plain_encoder(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eight_bits, "has_dot_products", lambda: False)
    load(tmp_path, FILES, device="cpu", fast_encoder=True)
    assert opened == ["encoder.onnx", "decoder_cpu.onnx"]


def test_a_gpu_gets_the_plain_graphs(tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "choose_providers", lambda *_, **__: ("CUDAExecutionProvider", "CPUExecutionProvider"))
    load(tmp_path, FILES)
    assert opened == ["encoder.onnx", "decoder.onnx"]
