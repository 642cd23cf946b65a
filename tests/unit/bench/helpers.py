"""Results without a measurement."""

from __future__ import annotations

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Figure
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Series

MACHINE = {"cpu": "Abacus, 2 cores", "python": "3.11.7"}
ABOUT = {"model": "sam2:tiny", "weights": "as set up", "image": "coffee.png, 64 x 64 px"}


def chart(name: str = "click") -> Chart:
    """One panel of every kind, with bands, error bars and a fitted line."""
    line = Curve("measured", [1.0, 2.5, 4.0], [1, 2, 4], "points", [0.9, 2.0, 3.0], [1.1, 3.0, 5.0])
    fit = Curve("fitted", [1.0, 2.0, 4.0], [1, 2, 4], "dashed")
    bars = Curve("HTTP", [3.0, 4.0], low=[2.0, 4.0], high=[5.0, 4.0])
    panels = [
        Panel("prompts", "time, ms", [line, fit], doubling=True),
        Panel("form", "time, ms", [bars, Curve("gRPC", [2.0, 1.0])], "bars", ["bits", "a rather long label"]),
        Panel("protocol", "time, ms", [Curve("image", [1.0, 2.0]), Curve("masks", [0.0, 2.0])], "stacked", ["a", "b"]),
    ]
    return Chart(name, "A title that is long enough to need a second line of its own above the three panels", panels)


def result(*figures: Figure, name: str = "click") -> Result:
    series = Series("click, rle, HTTP", "ms", ((1.0, 2.0), (3.0,)))
    return Result(
        name,
        list(figures),
        [series],
        [chart()],
        ["something was left out"],
        dict(ABOUT),
        dict(MACHINE),
        "triton-sam bench click",
        "2026-01-01T00:00:00+00:00",
        "abc1234",
    )
