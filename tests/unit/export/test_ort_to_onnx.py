from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from triton_sam.errors import SetupError
from triton_sam.export.ort_to_onnx import as_onnx

FLOAT = 1


def field(number: int, value: int | bytes | str) -> bytes:
    """One field of a protobuf message; all lengths and numbers here are below 128."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    data = value.encode() if isinstance(value, str) else value
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def value_info(name: str) -> bytes:
    """A ValueInfoProto: float32 [2]."""
    shape = field(1, field(1, 2))
    return field(1, name) + field(2, field(1, field(1, FLOAT) + field(2, shape)))


def tiny_graph() -> bytes:
    """A ModelProto, written by hand: y = x + x."""
    node = field(1, "x") + field(1, "x") + field(2, "y") + field(4, "Add")
    graph = field(1, node) + field(2, "g") + field(11, value_info("x")) + field(12, value_info("y"))
    return field(1, 8) + field(7, graph) + field(8, field(2, 13))


@pytest.fixture
def onnx(tmp_path: Path) -> Path:
    path = tmp_path / "graph.onnx"
    path.write_bytes(tiny_graph())
    return path


@pytest.fixture
def ort(onnx: Path) -> Path:
    """The same graph in ONNX Runtime's own format."""
    path = onnx.with_suffix(".ort")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
    assert path.read_bytes() != onnx.read_bytes()
    return path


def run(path: Path) -> list[float]:
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    (answer,) = session.run(["y"], {"x": np.array([1.5, -2.0], np.float32)})
    found: list[float] = answer.tolist()
    return found


def test_onnx_stays_where_it_is(onnx: Path, tmp_path: Path) -> None:
    assert as_onnx(onnx, tmp_path / "converted") == onnx
    assert not (tmp_path / "converted").exists()


def test_ort_becomes_onnx(ort: Path, tmp_path: Path) -> None:
    target = as_onnx(ort, tmp_path / "converted")
    assert target == tmp_path / "converted" / "graph.onnx"
    assert run(target) == [3.0, -4.0]
    assert target.read_bytes()[:1] == b"\x08"  # a ModelProto begins with its version; the other format does not
    assert sorted(path.name for path in target.parent.iterdir()) == ["graph.onnx", "graph.onnx.sha256"]


def test_a_conversion_is_made_once(ort: Path, tmp_path: Path) -> None:
    target = as_onnx(ort, tmp_path / "converted")
    before = target.stat().st_mtime_ns
    ort.write_bytes(b"no longer readable")
    assert as_onnx(ort, tmp_path / "converted") == target
    assert target.stat().st_mtime_ns == before


def test_a_conversion_that_was_written_into_is_made_again(ort: Path, tmp_path: Path) -> None:
    target = as_onnx(ort, tmp_path / "converted")
    content = target.read_bytes()
    target.write_bytes(bytes(len(content)))
    assert as_onnx(ort, tmp_path / "converted").read_bytes() == content


@pytest.mark.parametrize("damage", ["empty", "noise", "cut", "missing"])
def test_a_damaged_file_leaves_nothing_behind(damage: str, ort: Path, tmp_path: Path) -> None:
    whole = ort.read_bytes()
    ort.write_bytes({"empty": b"", "noise": b"x" * 100, "cut": whole[: len(whole) // 2], "missing": b""}[damage])
    if damage == "missing":
        ort.unlink()
    with pytest.raises(SetupError, match=r"graph\.ort could not be converted"):
        as_onnx(ort, tmp_path / "converted")
    assert list((tmp_path / "converted").iterdir()) == []


def test_a_conversion_that_fails_half_way_leaves_nothing_behind(
    ort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_half(_path: str, options: onnxruntime.SessionOptions, **_: object) -> None:
        Path(options.optimized_model_filepath).write_bytes(b"half")
        raise RuntimeError("no space left on device")

    monkeypatch.setattr(onnxruntime, "InferenceSession", write_half)
    with pytest.raises(SetupError, match="no space left"):
        as_onnx(ort, tmp_path / "converted")
    assert list((tmp_path / "converted").iterdir()) == []
