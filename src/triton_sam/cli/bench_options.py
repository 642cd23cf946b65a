"""Options that all commands of ``triton-sam bench`` share, and what they do with them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from triton_sam.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from triton_sam.bench.results import Result
    from triton_sam.bench.samples import Plan
    from triton_sam.bench.target import Target, TargetOptions

OutputOption = Annotated[
    Path | None,
    typer.Option(help="Folder for result.json, result.md and the plots; a name that ends in .json: only that file."),
]
BaselineOption = Annotated[
    Path | None,
    typer.Option(help="An earlier result.json, or its folder: exit code 1 if a figure is more than 10 % worse."),
]


@dataclass(frozen=True)
class BenchOptions:
    """The fields are the options of every command."""

    model: Annotated[str, typer.Option(help="Id of the model, or a family for its default.")] = DEFAULT_MODEL
    rounds: Annotated[int, typer.Option(min=1, help="How often all measurements are repeated.")] = 5
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
        typer.Option(help="A running server to measure instead of starting one; repeat it for grpc://host:port."),
    ] = None
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Measure the model with random weights, in a temporary repository.")
    ] = False

    @property
    def target(self) -> TargetOptions:
        from triton_sam.bench.target import TargetOptions

        urls = tuple(self.url or ())
        return TargetOptions(self.model, self.image, self.side, urls, self.model_repository, self.random_weights)

    def plan(self, target: Target, samples: int) -> Plan:
        """How much to measure; ``samples`` is the command's default."""
        from triton_sam.bench.samples import Plan

        rest = target.settle if self.rest is None else self.rest
        return Plan(self.rounds, self.samples or samples, self.warm_up, rest)

    def run(
        self,
        measure: Callable[[Target], Result],
        *,
        raw: bool = False,
        service: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Opens the server, measures it and publishes the result. See ``open_target`` for ``raw`` and others."""
        from triton_sam.bench.target import open_target

        with open_target(self.target, raw=raw, service=service, environment=environment) as target:
            result = measure(target)
        self.finish(result)

    def finish(self, result: Result) -> None:
        """Prints and writes the result; exit code 1 if a bar is missed or a figure is worse than the baseline's."""
        from triton_sam.bench.publish import publish

        if not publish(result, self.output, self.baseline):
            raise typer.Exit(1)


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of :class:`BenchOptions`, which it gets as its first argument."""
    hints = get_type_hints(BenchOptions, include_extras=True)
    shared = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in dataclasses.fields(BenchOptions)
    ]
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    ]
    names = {parameter.name for parameter in shared}

    @functools.wraps(function)
    def command(**given: Any) -> None:
        options = BenchOptions(**{name: given.pop(name) for name in names})
        if options.baseline is not None:  # an unreadable baseline is reported before minutes of measuring
            from triton_sam.bench import results

            results.read(options.baseline)
        with _terminated_like_interrupted():
            function(options, **given)

    command.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)}
    return command


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends the servers that a benchmark has started, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
