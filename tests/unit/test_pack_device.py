"""What a GPU machine without a network gets: everything that serving imports, at the versions of the lock."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def pack_device(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import pack_device

    monkeypatch.delitem(sys.modules, "pack_device")
    return pack_device


def test_requirements_of_requirements_are_packed_as_the_lock_says(pack_device: ModuleType) -> None:
    names = pack_device.requirements("triton-sam", ["server", "service"])
    direct, indirect = {"fastapi", "tritonclient", "pydantic"}, {"starlette", "grpcio", "pydantic-core"}
    assert direct | indirect <= set(names)
    assert not {"torch", "numpy", "onnxruntime", "pytest"} & set(names)
    assert len(pack_device._pinned(names)) == len(names)


def test_without_extras_there_is_no_service(pack_device: ModuleType) -> None:
    names = pack_device.requirements("triton-sam", [])
    assert "tritonclient" in names
    assert "fastapi" not in names
