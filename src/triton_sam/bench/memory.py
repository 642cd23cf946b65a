"""Whether memory stays level when images come and go, and how it grows with the images that stay."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Figure
from triton_sam.bench.machine import gpu_bytes
from triton_sam.bench.observe import counters, server_bytes
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Series, fitted
from triton_sam.bench.target import Choice, Target, opened

SMALL_CACHE = 200_000_000
_TAIL = 60
_ENDS = 5
#: Level: what may come on top of it, by the fitted line and from end to end.
_LEVEL_MB_PER_IMAGE = 0.5
_LEVEL_MB = 50.0
#: What images may take in all over what their embeddings do.
_BEYOND_EMBEDDING = 1.25
Say = Callable[[str], None]


def measure_memory(choice: Choice, images: int, cached: int, cache_bytes: int, say: Say = lambda _: None) -> Result:
    """Two servers, one after the other: a small cache that must stay level, and one that keeps every image.

    Args:
        images: different ones through the small cache; cached: through the large one. 0 leaves that part out.
        cache_bytes: of the small one.
    """
    result: Result | None = None
    if images:
        with opened(choice, environment={"TRITON_SAM_CACHE_BYTES": str(cache_bytes)}) as target:
            result = target.result("memory")
            _level(result, target, images, cache_bytes, say)
    if cached:
        room = {"TRITON_SAM_CACHE_BYTES": str(cached * 64_000_000)}  # above any model's embedding
        with opened(choice, environment=room) as target:
            result = result or target.result("memory")
            _growth(result, target, cached, say)
    assert result is not None  # the command asks for one part at least
    return result


def _watch(target: Target, images: int, say: Say) -> dict[str, list[float]]:
    """After each new image, and a click on it, in MB: the server's memory, its cache and, where there is one, the
    GPU's. First of all without any image."""
    running = target.own("memory")
    seen: dict[str, list[float]] = {"server": [], "cache": [], "GPU": []}

    def look() -> None:
        seen["server"].append(server_bytes(running) / 1e6)
        seen["cache"].append(counters(running, target.name).get("cache_bytes", 0.0) / 1e6)
        taken = gpu_bytes()
        if taken is not None:
            seen["GPU"].append(taken / 1e6)

    look()
    with target.client("HTTP") as client:
        for number in range(images):
            client.set_image(target.pictures.jpeg(number))
            client.segment([list(target.pictures.point(number))])
            look()
            if (number + 1) % 10 == 0:
                say(f"{number + 1} of {images} images: {seen['server'][-1]:.0f} MB")
    return seen


def _level(result: Result, target: Target, images: int, cache_bytes: int, say: Say) -> None:
    seen = _watch(target, images, say)
    _keep(result, seen, "small cache")
    tail = min(_TAIL, max(2, images * 6 // 10))
    server = seen["server"][-tail:]
    numbers = list(range(images - tail + 1, images + 1))
    line = fitted(numbers, server)
    ends = min(_ENDS, len(server) // 2)
    grown = median(server[-ends:]) - median(server[:ends])
    detail = f"{images} different images, cache of {cache_bytes / 1e6:.0f} MB"
    result.figures += [
        Figure(
            f"memory growth over the last {tail} images, fitted",
            line.slope,
            "MB/image",
            _LEVEL_MB_PER_IMAGE,
            f"{detail}; {server[-1]:.0f} MB in the end",
        ),
        Figure(f"memory growth over the last {tail} images", grown, "MB", _LEVEL_MB, f"{detail}; medians of {ends}"),
    ]
    title = f"{images} different images through a cache of {cache_bytes / 1e6:.0f} MB: {target.spec.id}"
    fit = Curve(f"last {tail}: {line.slope:+.3f} MB an image", [line.at(n) for n in numbers], numbers, "dashed")
    result.charts.append(Chart("memory_level", title, [_panel(seen, "images so far", [fit])]))


def _growth(result: Result, target: Target, images: int, say: Say) -> None:
    seen = _watch(target, images, say)
    _keep(result, seen, "large cache")
    # The first images bring the graphs' own memory with them, which is no cost of an image; and what those leave free
    # between two encodes takes the next embeddings in, so that few images may even cost nothing.
    warm = max(2, images // 10)
    numbers = list(range(warm, images + 1))
    side = "GPU" if seen["GPU"] else "server"
    taken, cache = seen[side][warm:], seen["cache"][warm:]
    line = fitted(numbers, taken)
    grown, own = taken[-1] - taken[0], cache[-1] - cache[0]
    detail = f"{side}: {taken[0]:.0f} MB with {warm} images, {taken[-1]:.0f} MB with {images}"
    result.figures += [
        Figure("memory of one more cached image", line.slope, "MB", detail=f"fitted; {detail}"),
        Figure("embedding of an image in the cache", own / max(1, images - warm), "MB", better="lower"),
        Figure(
            "memory growth / growth of the cache",
            grown / own if own else float("inf"),
            "x",
            _BEYOND_EMBEDDING,
            f"{grown:.0f} MB and {own:.0f} MB: linear growth is 1, less is better than linear",
        ),
    ]
    title = f"Memory with 1 to {images} cached images: {target.spec.id}"
    fit = Curve(f"{line.slope:.1f} MB an image", [line.at(number) for number in numbers], numbers, "dashed")
    result.charts.append(Chart("memory_cached", title, [_panel(seen, "cached images", [fit])]))


def _panel(seen: dict[str, list[float]], x_label: str, more: list[Curve]) -> Panel:
    names = {"server": "the server's processes", "cache": "embeddings, by the cache's count", "GPU": "the whole GPU"}
    curves = [Curve(names[key], values, list(range(len(values)))) for key, values in seen.items() if values]
    return Panel(x_label, "memory, MB", [*curves, *more])


def _keep(result: Result, seen: dict[str, list[float]], which: str) -> None:
    result.series += [Series(f"{key}, {which}", "MB", (tuple(values),)) for key, values in seen.items() if values]
