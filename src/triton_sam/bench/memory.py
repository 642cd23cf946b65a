"""Memory: does it stay level when images come and go, and how does it grow with the cached images?"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Figure
from triton_sam.bench.machine import gpu_bytes
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Series, fitted
from triton_sam.bench.target import Target, TargetOptions, open_target
from triton_sam.errors import InvalidInput
from triton_sam.server.metrics_reader import server_bytes, settled_counters

_TAIL = 60
_ENDS = 5
#: Growth that still counts as level: slope of the fitted line, and from the first to the last images.
_LEVEL_MB_PER_IMAGE = 0.5
_LEVEL_MB = 50.0
#: The most that memory may grow, as a multiple of the growth of the cache.
_BEYOND_EMBEDDING = 1.25
ReportProgress = Callable[[str], None]


def measure_memory(
    options: TargetOptions, images: int, cached: int, cache_bytes: int, report_progress: ReportProgress = lambda _: None
) -> Result:
    """Starts two servers, one after the other: a small cache that must stay level, and one that keeps every image.

    Args:
        images: different images through the small cache; 0 leaves this part out.
        cached: images in the large cache; 0 leaves this part out.
        cache_bytes: size of the small cache.
    """
    if not (images or cached):
        raise InvalidInput("nothing to measure: give --images or --cached")
    if options.urls:
        raise InvalidInput("memory needs a server of its own: omit --url")
    result: Result | None = None
    if images:
        with open_target(options, environment={"TRITON_SAM_CACHE_BYTES": str(cache_bytes)}) as target:
            result = target.result("memory")
            _level(result, target, images, cache_bytes, report_progress)
    if cached:
        room = {"TRITON_SAM_CACHE_BYTES": str(cached * 64_000_000)}  # above any model's embedding
        with open_target(options, environment=room) as target:
            result = result or target.result("memory")
            _growth(result, target, cached, report_progress)
    assert result is not None  # one part at least was measured
    return result


def _record(target: Target, images: int, report_progress: ReportProgress) -> dict[str, list[float]]:
    """Memory of the server, of its cache and of the GPU (empty without one), in MB.

    The first value is before any image, the others after each new image and a click on it.
    """
    running = target.started_server("memory")
    used: dict[str, list[float]] = {"server": [], "cache": [], "GPU": []}

    def read() -> None:
        used["server"].append(server_bytes(running.supervisor.process) / 1e6)
        counters = settled_counters(running.urls["metrics"], target.name)
        used["cache"].append(counters.get("cache_bytes", 0.0) / 1e6)
        on_gpu = gpu_bytes()
        if on_gpu is not None:
            used["GPU"].append(on_gpu / 1e6)

    read()
    with target.client("HTTP") as client:
        for number in range(images):
            client.set_image(target.pictures.jpeg(number))
            client.segment([list(target.pictures.point(number))])
            read()
            if (number + 1) % 10 == 0:
                report_progress(f"{number + 1} of {images} images: {used['server'][-1]:.0f} MB")
    return used


def _level(result: Result, target: Target, images: int, cache_bytes: int, report_progress: ReportProgress) -> None:
    """Whether memory stays level with a small cache."""
    used = _record(target, images, report_progress)
    _add_series(result, used, "small cache")
    tail = min(_TAIL, max(2, images * 6 // 10))
    server = used["server"][-tail:]
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
    result.charts.append(Chart("memory_level", title, [_panel(used, "images so far", [fit])]))


def _growth(result: Result, target: Target, images: int, report_progress: ReportProgress) -> None:
    """How memory grows with the number of cached images."""
    used = _record(target, images, report_progress)
    _add_series(result, used, "large cache")
    # The first images also allocate the graphs' own memory, which is not the cost of an image. What is free of it
    # between two encodes can hold the next embeddings, so that a few images may cost nothing.
    warm = max(2, images // 10)
    numbers = list(range(warm, images + 1))
    side = "GPU" if used["GPU"] else "server"
    memory, cache = used[side][warm:], used["cache"][warm:]
    line = fitted(numbers, memory)
    grown, embeddings = memory[-1] - memory[0], cache[-1] - cache[0]
    detail = f"{side}: {memory[0]:.0f} MB with {warm} images, {memory[-1]:.0f} MB with {images}"
    result.figures += [
        Figure("memory of one more cached image", line.slope, "MB", detail=f"fitted; {detail}"),
        Figure("embedding of an image in the cache", embeddings / max(1, images - warm), "MB", better="lower"),
        Figure(
            "memory growth / growth of the cache",
            grown / embeddings if embeddings else float("inf"),
            "x",
            _BEYOND_EMBEDDING,
            f"{grown:.0f} MB and {embeddings:.0f} MB: linear growth is 1, less is better than linear",
        ),
    ]
    title = f"Memory with 1 to {images} cached images: {target.spec.id}"
    fit = Curve(f"{line.slope:.1f} MB an image", [line.at(number) for number in numbers], numbers, "dashed")
    result.charts.append(Chart("memory_cached", title, [_panel(used, "cached images", [fit])]))


def _panel(used: dict[str, list[float]], x_label: str, more: list[Curve]) -> Panel:
    names = {"server": "the server's processes", "cache": "embeddings, by the cache's count", "GPU": "the whole GPU"}
    curves = [Curve(names[key], values, list(range(len(values)))) for key, values in used.items() if values]
    return Panel(x_label, "memory, MB", [*curves, *more])


def _add_series(result: Result, used: dict[str, list[float]], which: str) -> None:
    result.series += [Series(f"{key}, {which}", "MB", (tuple(values),)) for key, values in used.items() if values]
