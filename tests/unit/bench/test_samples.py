from __future__ import annotations

import pytest

from triton_sam.bench.figures import Figure, short
from triton_sam.bench.samples import Plan, Series, fitted, in_turns, ratio


def test_a_series_says_its_median_tails_and_drift() -> None:
    series = Series("click", "ms", (tuple(map(float, range(1, 51))), tuple(map(float, range(51, 101)))))
    assert series.median == 50.5
    assert series.percentile(95) == pytest.approx(95.05)
    assert series.percentile(99) == pytest.approx(99.01)
    assert series.spread == (25.5, 75.5)
    assert series.detail == "p95 95, p99 99; 100 in 2 rounds (medians 25.5 to 75.5)"


def test_a_series_becomes_a_figure_of_which_less_is_better() -> None:
    figure = Series("click", "ms", ((3.0, 5.0, 4.0),)).figure(bar=3.5, detail="by hand")
    assert (figure.name, figure.value, figure.unit, figure.better) == ("click", 4.0, "ms", "lower")
    assert figure.detail.endswith("; by hand")
    assert not figure.reached


@pytest.mark.parametrize(
    ("bar", "least", "reached"), [(None, None, True), (2.0, None, True), (1.9, None, False), (None, 2.1, False)]
)
def test_bars(bar: float | None, least: float | None, reached: bool) -> None:
    assert Figure("x", 2.0, "", bar, least=least).reached is reached


def test_turns_are_mixed_and_warm_up_does_not_count() -> None:
    calls: list[str] = []

    def action(name: str, seconds: float) -> float:
        calls.append(name)
        return seconds

    measured = in_turns(
        {"a": lambda: action("a", 0.001), "b": lambda: action("b", 0.002)},
        Plan(rounds=3, samples=4, warm_up=2, settle=0.0),
    )
    assert [len(values) for values in measured["a"].rounds] == [4, 4, 4]
    assert measured["a"].values == [1.0] * 12
    assert measured["b"].values == [2.0] * 12
    assert len(calls) == 2 * (12 + 2)
    turns = [tuple(calls[at : at + 2]) for at in range(0, len(calls), 2)]
    assert {*turns} == {("a", "b"), ("b", "a")}


def test_ratios_are_of_pairs() -> None:
    above, below = Series("", "ms", ((2.0, 9.0), (4.0,))), Series("", "ms", ((1.0, 3.0), (4.0,)))
    assert ratio("x", above, below) == Series("x", "x", ((2.0, 3.0), (1.0,)))


def test_a_line_through_points() -> None:
    line = fitted([1, 4, 16], [12.0, 18.0, 42.0])
    assert line.slope == pytest.approx(2.0)
    assert line.at(64) == pytest.approx(138.0)
    assert fitted([3, 3], [1.0, 2.0]).at(100) == 1.5


@pytest.mark.parametrize(
    ("value", "text"), [(0.0001234, "0.000123"), (1.0, "1"), (99.96, "100"), (999.6, "1000"), (12345.6, "12346")]
)
def test_numbers_have_no_exponent_where_people_would_not_write_one(value: float, text: str) -> None:
    assert short(value) == text
