"""What compiled code depends on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.export.small import small_spec
from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.engines.torch import code_key as module
from triton_sam.engines.torch.code_key import code_key, source_digest

pytestmark = pytest.mark.torch
SPEC = small_spec("sam2.1:tiny")
WHOLE, HALF = torch.float32, torch.float16


def key(**changed: Any) -> str:
    given: dict[str, Any] = {
        "architecture": SPEC.architecture,
        "graphs": SPEC.graphs,
        "memory": None,
        "device": torch.device("cpu"),
        "dtypes": (WHOLE, WHOLE),
        "mode": "default",
    }
    return json.dumps(code_key(**{**given, **changed}))


def test_it_is_the_same_at_the_next_start() -> None:
    assert key() == key()


@pytest.mark.parametrize(
    "changed",
    [
        {"architecture": dataclasses.replace(SPEC.architecture, width=8)},
        {"graphs": dataclasses.replace(SPEC.graphs, side=512)},
        {"memory": MemoryTraits()},
        {"dtypes": (HALF, WHOLE)},
        {"dtypes": (WHOLE, HALF)},
        {"mode": "max-autotune"},
    ],
)
def test_it_tells_models_and_options_apart(changed: dict[str, Any]) -> None:
    assert key(**changed) != key()


def test_it_tells_gpus_and_drivers_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    seen = {key(), key(device=torch.device("cuda", 0))}
    (tmp_path / "version").write_text("580.1\nGCC 13\n")
    seen.add(key(device=torch.device("cuda", 0)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "another")
    seen.add(key(device=torch.device("cuda", 0)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    seen.add(key(device=torch.device("cuda", 0)))
    monkeypatch.setattr(torch, "__version__", "9.9")
    seen.add(key(device=torch.device("cuda", 0)))
    assert len(seen) == 6


def test_it_changes_with_our_own_code(tmp_path: Path) -> None:
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "one.py").write_text("1")
    before = source_digest(tmp_path)
    (tmp_path / "networks" / "one.py").write_text("2")
    assert source_digest(tmp_path) != before
