from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.bench.helpers import result
from triton_sam.bench.baseline import compare, show
from triton_sam.bench.figures import Figure
from triton_sam.bench.results import read, write


def time(value: float, name: str = "click") -> Figure:
    return Figure(name, value, "ms", better="lower")


def rate(value: float) -> Figure:
    return Figure("clicks a second", value, "clicks/s", better="higher")


@pytest.mark.parametrize(
    ("before", "now", "regressed"),
    [
        (time(10.0), time(10.9), False),
        (time(10.0), time(11.1), True),
        (time(10.0), time(1.0), False),
        (rate(100.0), rate(91.0), False),
        (rate(100.0), rate(89.0), True),
        (rate(100.0), rate(900.0), False),
    ],
)
def test_a_regression_is_what_is_worse_by_more_than_a_tenth(before: Figure, now: Figure, regressed: bool) -> None:
    comparison = compare(result(now), result(before))
    assert bool(comparison.regressions) is regressed
    assert comparison.warnings == []
    assert (now.name in comparison.verdict) is regressed


def test_a_figure_without_a_direction_is_not_compared() -> None:
    comparison = compare(result(Figure("p99", 20.0, "ms")), result(Figure("p99", 10.0, "ms")))
    assert (comparison.changes, comparison.missing, comparison.new) == ([], [], [])


def test_what_only_one_side_has_is_told() -> None:
    comparison = compare(result(time(1.0), time(2.0, "new one")), result(time(1.0), time(3.0, "old one")))
    assert comparison.missing == ["old one"]
    assert comparison.new == ["new one"]
    assert not comparison.regressions


def test_no_ratio_to_nothing_or_less() -> None:
    comparison = compare(result(time(3.0)), result(time(-0.5)))
    assert comparison.changes[0].ratio is None
    assert not comparison.regressions


def test_another_machine_or_model_is_a_warning() -> None:
    before = result(time(1.0), name="encode")
    before.machine = {"cpu": "Difference Engine", "gpu": "Loom"}
    before.about["model"] = "sam1:mobile"
    warnings = compare(result(time(1.0)), before).warnings
    assert len(warnings) == 4
    assert "`bench encode`" in warnings[0]
    assert all(word in " ".join(warnings) for word in ("sam1:mobile", "Difference Engine", "Loom", "unknown"))


def test_a_file_from_before_there_were_directions_can_be_a_baseline(tmp_path: Path) -> None:
    old = {"machine": {"cpu": "Abacus"}, "figures": [{"name": "click", "value": 1.0, "unit": "ms", "reached": True}]}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert compare(result(time(2.0)), read(tmp_path / "old.json")).regressions[0].ratio == 2.0


def test_what_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(result(time(1.0), time(1.0, "gone")), tmp_path / "before.json")
    show(compare(result(time(2.0), rate(5.0)), read(tmp_path / "before.json")))
    shown, complaint = capsys.readouterr()
    assert "2.000" in shown
    assert "not measured now: gone" in shown
    assert "not in the baseline: clicks a second" in shown
    assert "worse than the baseline by more than 10%: click (2.00 x)" in complaint
