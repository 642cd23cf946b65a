"""Which devices and how many processes a model gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from triton_sam.engines.device_list import devices_of, processes_of, use_device, visible_gpus
from triton_sam.errors import SetupError
from triton_sam.models.specs import NETWORK_FILE
from triton_sam.serving import ServeRequest, serve_models
from triton_sam.settings import Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A version with weights for torch."""
    (tmp_path / NETWORK_FILE).write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("", []), ("2", ["2"]), ("0,3", ["0", "3"]), ("GPU-ab, 1", ["GPU-ab", "1"]), ("1,-1,2", ["1"]), ("-1", [])],
)
def test_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch, variable: str, expected: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus() == expected


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("nvidia3", "nvidia5", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus(tmp_path) == ["0", "1"]


def test_a_model_on_torch_uses_all_gpus(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert devices_of(folder, Settings()) == ["0", "1"]
    assert processes_of(folder, Settings()) >= 2
    assert devices_of(folder, Settings(devices="1")) == ["1"]
    assert processes_of(folder, Settings(devices="1")) == 1
    assert processes_of(folder, Settings(devices="1", processes=4)) == 4


@pytest.mark.parametrize(
    ("device", "visible", "kind"),
    [("1", "1", "auto"), ("GPU-ab", "GPU-ab", "auto"), ("auto", "2,1", "auto"), ("cpu", "2,1", "cpu")],
)
def test_a_process_sees_the_device_that_it_shall_use(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str, kind: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert use_device(device, Settings()).device == kind
    assert visible_gpus() == visible.split(",")


@pytest.mark.parametrize("settings", [{"engine": "onnx"}, {"device": "cpu"}])
def test_others_leave_the_device_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, folder: Path, settings: dict[str, str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert devices_of(folder, Settings.model_validate(settings)) == ["auto"]
    (folder / NETWORK_FILE).unlink()
    assert devices_of(folder, Settings()) == ["auto"]


def test_gpus_and_cpus_do_not_mix() -> None:
    with pytest.raises(ValueError, match="not both"):
        Settings(devices="0,cpu")


@pytest.mark.parametrize(("gpus", "sentence"), [("first", "numbers separated by commas"), ("0,7", "no GPU 7 here")])
def test_gpus_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: str, sentence: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("triton_sam.serving.prepare", lambda *_: pytest.fail("nothing may be set up"))
    with pytest.raises(SetupError, match=sentence), serve_models(ServeRequest(gpus=gpus), Settings(home=tmp_path)):
        pass
