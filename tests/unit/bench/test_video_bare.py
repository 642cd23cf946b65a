"""Tracking without a server, with a small side: transformers' session and the engine alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks import video_bare
from benchmarks.device_scale import MODEL
from benchmarks.video_device import write_frames
from benchmarks.video_weights import make_video_weights, spec_in
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import NETWORK_FILE, exported_graphs
from triton_sam.repository.setup import set_up_random

pytestmark = [pytest.mark.torch, pytest.mark.part("bench")]
SIDE = 256


@pytest.mark.parametrize(("part", "lines"), [("transformers", 2), ("bare", 4)])
def test_it_gives_figures(part: str, lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = get_spec("sam2.1:tiny")
    small = dataclasses.replace(spec, graphs=exported_graphs(spec.architecture, SIDE))
    set_up_random(small, tmp_path / "repository")
    (tmp_path / "repository" / MODEL / "1" / NETWORK_FILE).unlink()
    make_video_weights(tmp_path / "repository")
    assert spec_in(tmp_path / "repository").side == SIDE
    (tmp_path / "frames").mkdir()
    write_frames(tmp_path / "frames", Path("docs/images/coffee.png"), (160, 120))
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(video_bare, "say", lambda **figures: said.append(figures))
    monkeypatch.setattr(video_bare, "_WARM", 2)
    monkeypatch.setattr(video_bare, "_FRAMES", 2)
    getattr(video_bare, part)(tmp_path / "repository", sorted((tmp_path / "frames").glob("*.jpg")), [1, 2])
    assert len(said) == lines
    assert all(figures["frame_ms"] > 0 for figures in said)
