"""``triton-sam bench``: the commands that measure segmenters, all with the same options and one folder each."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from triton_sam.console import err, out
from triton_sam.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from triton_sam.bench.results import Result
    from triton_sam.bench.samples import Plan
    from triton_sam.bench.target import Choice, Target

OutputOption = Annotated[
    Path | None,
    typer.Option(help="Folder for result.json, result.md and the plots; a name that ends in .json: that file alone."),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(help="An earlier result.json, or its folder: more than 10 % worse than that is exit code 1."),
]


class Protocol(str, enum.Enum):
    """How the client speaks to Triton."""

    http = "HTTP"
    grpc = "gRPC"


@dataclass(frozen=True)
class Common:
    """What every command takes; the fields are its options."""

    model: Annotated[str, typer.Option(help="Id of the model, or a family for its default.")] = DEFAULT_MODEL
    rounds: Annotated[int, typer.Option(min=1, help="How often everything is gone through.")] = 5
    samples: Annotated[
        int | None, typer.Option(min=1, help="Measurements of each kind in a round; each command has its own default.")
    ] = None
    warm_up: Annotated[int, typer.Option(min=0, help="Measurements of each kind before, which do not count.")] = 2
    rest: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds of rest before each measurement; default: 0.1 on a CPU, none on a GPU."),
    ] = None
    output: OutputOption = None
    baseline: BaselineOption = None
    image: Annotated[Path | None, typer.Option(help="An image file; default: a photograph of --side pixels.")] = None
    side: Annotated[int, typer.Option(min=64, max=16384, help="Side of the default image, in pixels.")] = 1024
    model_repository: Annotated[Path | None, typer.Option(help="A model repository of your own.")] = None
    url: Annotated[
        list[str] | None,
        typer.Option(help="A server that runs already, instead of one of its own; again for grpc://host:port."),
    ] = None
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="A model with random weights in a repository of its own.")
    ] = False

    @property
    def choice(self) -> Choice:
        from triton_sam.bench.target import Choice

        urls = tuple(self.url or ())
        return Choice(self.model, self.image, self.side, urls, self.model_repository, self.random_weights)

    def plan(self, target: Target, samples: int) -> Plan:
        """``samples`` where the user does not say otherwise."""
        from triton_sam.bench.target import planned

        return planned(target, self.rounds, self.samples or samples, self.warm_up, self.rest)

    def finish(self, result: Result) -> None:
        finish(result, self.output, self.baseline)


def finish(result: Result, output: Path | None, baseline: Path | None) -> None:
    """Prints the table, writes what is asked for; exit code 1 where a bar is missed or the baseline was better."""
    from triton_sam.bench import baseline as baselines
    from triton_sam.bench import report, results

    before = results.read(baseline) if baseline is not None else None
    for note in result.notes:
        out.print(note)
    report.show(result.figures)
    if output is not None:
        missing = results.write(result, output)
        if missing is not None:
            err.print(missing)
        out.print(f"written: {output}")
    worse = False
    if before is not None:
        comparison = baselines.compare(result, before)
        baselines.show(comparison)
        worse = bool(comparison.regressions)
    if worse or not result.reached:
        raise typer.Exit(1)


def with_common(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of :class:`Common`, which it gets as its first argument."""
    hints = get_type_hints(Common, include_extras=True)
    shared = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in dataclasses.fields(Common)
    ]
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    ]
    names = {parameter.name for parameter in shared}

    @functools.wraps(function)
    def command(**given: Any) -> None:
        common = Common(**{name: given.pop(name) for name in names})
        if common.baseline is not None:  # what cannot be read is told before minutes of measuring
            from triton_sam.bench import results

            results.read(common.baseline)
        function(common, **given)

    command.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    return command


def _measure(common: Common, measure: Callable[[Target, Plan], Result], samples: int) -> None:
    """One measurement of one server; ``samples`` in each round where nothing else is asked for."""
    from triton_sam.bench.target import opened

    with opened(common.choice) as target:
        result = measure(target, common.plan(target, samples))
    common.finish(result)


@with_common
def encode(common: Common) -> None:
    """A new image until its key is back, by every protocol; the server's own account of it; the encoder alone."""
    from triton_sam.bench.latency import measure_encode

    _measure(common, measure_encode, samples=4)


@with_common
def click(common: Common) -> None:
    """A click on a cached image by form and protocol, its bytes, and how time grows with the prompts of a request."""
    from triton_sam.bench.latency import measure_click

    _measure(common, measure_click, samples=12)


@with_common
def session(common: Common) -> None:
    """A new image and ten masks on it, one after the other, as a user makes them."""
    from triton_sam.bench.latency import measure_session

    _measure(common, measure_session, samples=2)


@with_common
def hover(
    common: Common,
    sessions: Annotated[int, typer.Option(min=1, help="Mice that move at the same time.")] = 20,
    hovers: Annotated[int, typer.Option(min=1, help="Predictions that each of them begins.")] = 100,
    rate: Annotated[float, typer.Option(min=0.1, help="Hovers a second, of each.")] = 60.0,
    protocol: Annotated[list[Protocol] | None, typer.Option(help="Default: both.")] = None,
) -> None:
    """Hover faster than the server can decode: what is executed, and how soon the last hover is answered.

    One round that counts after two to warm up: --rounds, --samples and --warm-up say nothing here.
    """
    from triton_sam.bench.hover import Load, measure_hover
    from triton_sam.bench.target import opened

    with opened(common.choice) as target:
        load = Load(sessions, hovers, rate, (target.pictures.width, target.pictures.height))
        result = measure_hover(target, load, [each.value for each in protocol or list(Protocol)])
    common.finish(result)


@with_common
def throughput(
    common: Common,
    most: Annotated[int, typer.Option(min=1, max=1024, help="Clients at a time, at most; doubled from 1 on.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long each step lasts.")] = 5.0,
    form: Annotated[str, typer.Option(help="How masks travel: bits, rle, png.")] = "bits",
    least_clicks: Annotated[float | None, typer.Option(help="A bar: clicks a second with 32 clients.")] = None,
    least_images: Annotated[float | None, typer.Option(help="A bar: images a second with 16 clients.")] = None,
) -> None:
    """More and more clients, each a process of its own, until the queue refuses: clicks a second, images a second.

    Every step is one time of --seconds, after one to settle: --rounds, --samples and --warm-up say nothing here.
    """
    from triton_sam.bench.target import opened
    from triton_sam.bench.throughput import Load, measure_throughput

    # Each client clicks on an image of its own: all of them must fit into the cache.
    environment = {"TRITON_SAM_CACHE_BYTES": str(max(2**30, most * 40_000_000))}
    with opened(common.choice, environment=environment) as target:
        result = measure_throughput(target, Load(most, seconds, form, least_clicks, least_images))
    common.finish(result)


@with_common
def memory(
    common: Common,
    images: Annotated[int, typer.Option(min=0, help="Different images through a small cache; 0: none.")] = 100,
    cache_bytes: Annotated[int, typer.Option(min=1, help="Size of that cache.")] = 200_000_000,
    cached: Annotated[int, typer.Option(min=0, help="Images in a cache that keeps them all; 0: none.")] = 24,
    many: Annotated[bool, typer.Option("--many", help="200 of those.")] = False,
) -> None:
    """Whether memory stays level when images come and go, and how it grows with the images that stay.

    Image after image, once: --rounds, --samples and --warm-up say nothing here.
    """
    from triton_sam.bench.memory import measure_memory
    from triton_sam.errors import InvalidInput

    if not (images or cached or many):
        raise InvalidInput("nothing to measure: give --images or --cached")
    if common.url:
        raise InvalidInput("memory needs a server of its own: leave --url away")
    common.finish(measure_memory(common.choice, images, 200 if many else cached, cache_bytes, err.print))


@with_common
def compare(
    common: Common,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Weights of (d), a file or folder; default: those downloaded, or random ones.")
    ] = None,
) -> None:
    """(a) the bare engine, (b) this server, (c) the classic two-stage design, (d) plain transformers: in turns."""
    from triton_sam.bench.compare import measure_compare
    from triton_sam.bench.target import opened

    with opened(common.choice, raw=True) as target:
        result = measure_compare(target, common.plan(target, 5), common.plan(target, 8), checkpoint)
    common.finish(result)


@with_common
def server(common: Common) -> None:
    """What the server adds to the bare engine, whom encodes disturb, and how soon it is back after a kill."""
    from triton_sam.bench.overhead import measure_overhead

    _measure(common, measure_overhead, samples=8)


def plot(folder: Annotated[Path, typer.Argument(help="Of an earlier run: where its result.json is.")]) -> None:
    """Draw the plots of an earlier run, for example of one on a machine without matplotlib."""
    from triton_sam.bench import plots, results

    for path in plots.draw(results.read(folder).charts, folder if folder.is_dir() else folder.parent):
        out.print(f"written: {path}")
