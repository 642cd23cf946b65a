"""The benchmark of tracked frames on a CPU on a real server, as small as it goes: what is measured, not how quick."""

from __future__ import annotations

import pytest

from benchmarks.video_cpu import VideoCpuPlan, run_video_cpu
from tests.unit.one_thread import one_thread

pytestmark = [pytest.mark.triton, pytest.mark.part("bench"), pytest.mark.timeout(600), pytest.mark.torch]


def test_video_cpu(embedded_server: None) -> None:
    plan = VideoCpuPlan(side=256, objects=(1, 2), rounds=1, frames=2, threads=1, size=(160, 120))
    with one_thread():
        result = run_video_cpu(plan)
    figures = {figure.name: figure for figure in result.figures}
    for what in ("1 object", "2 objects"):
        assert figures[f"served frame / transformers, {what}"].value > 0
        assert figures[f"the same in CPU time, {what}"].value > 0
        assert "track" in figures[f"served frame, {what}"].detail
        assert figures[f"run lengths of a frame, {what}"].value > 0
    parts = {"encoder", "encoder of transformers", "attention to memories, 2 rows", "decoder, 2 rows"}
    assert parts <= figures.keys()
