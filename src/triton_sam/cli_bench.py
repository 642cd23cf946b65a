"""``triton-sam bench``: figures of this machine."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from triton_sam.catalog import DEFAULT_MODEL
from triton_sam.console import err, out

if TYPE_CHECKING:
    from triton_sam.bench.measure import Figure
    from triton_sam.serving import Running

bench_app = typer.Typer(help="Measure this machine; each command starts a server of its own.", no_args_is_help=True)


ModelOption = Annotated[str, typer.Option(help="Id of the model.")]


class Protocol(str, enum.Enum):
    """How the client speaks to Triton."""

    http = "HTTP"
    grpc = "gRPC"


@bench_app.command()
def hover(
    sessions: Annotated[int, typer.Option(min=1, help="Mice that move at the same time.")] = 20,
    hovers: Annotated[int, typer.Option(min=1, help="Predictions that each of them begins.")] = 100,
    rate: Annotated[float, typer.Option(min=0.1, help="Hovers a second, of each.")] = 60.0,
    protocol: Annotated[list[Protocol] | None, typer.Option(help="Default: both.")] = None,
    model: ModelOption = DEFAULT_MODEL,
) -> None:
    """Hover faster than the server can decode: what is executed, and how soon the last hover is answered."""
    from triton_sam.bench.hover import Load, measure_hover

    load = Load(sessions, hovers, rate)
    with _served(model) as (running, sample):
        figures = [
            figure
            for chosen in protocol or list(Protocol)
            for figure in measure_hover(running, sample, load, chosen.value)
        ]
    _report(figures)


@bench_app.command()
def service(
    rounds: Annotated[int, typer.Option(min=1, help="Clicks of each kind.")] = 100,
    model: ModelOption = DEFAULT_MODEL,
) -> None:
    """What the service adds to a click, and whether slow senders disturb others."""
    from triton_sam.bench.service import overhead

    with _served(model) as (running, sample):
        figures = list(overhead(running, sample, rounds))
    _report(figures)


@contextlib.contextmanager
def _served(model: str) -> Iterator[tuple[Running, Path]]:
    """A server of its own on free ports, and a photograph."""
    from triton_sam.demo import sample_photograph
    from triton_sam.serving import Ports, prepare, serving
    from triton_sam.settings import get_settings

    settings = get_settings()
    repository, segmenters = prepare([model], settings, None)
    with serving(repository, segmenters, settings, ports=Ports(0, 0, 0, 0)) as running:
        yield running, sample_photograph()


def _report(figures: list[Figure]) -> None:
    """Prints the table; exit code 1 where a bar is missed."""
    table = Table("what", "measured", "bar", "detail")
    for figure in figures:
        bar = "" if figure.bar is None else f"<= {figure.bar:.3g}"
        measured = Text(f"{figure.value:.3g} {figure.unit}", style="" if figure.reached else "red")
        table.add_row(figure.name, measured, bar, figure.detail)
    out.print(table)
    missed = [figure.name for figure in figures if not figure.reached]
    if missed:
        err.print(f"not reached: {'; '.join(missed)}")
        raise typer.Exit(1)
