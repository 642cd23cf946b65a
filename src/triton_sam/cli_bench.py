"""``triton-sam bench``: figures of this machine."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triton_sam.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from triton_sam.bench.measure import Figure
    from triton_sam.serving import Running

bench_app = typer.Typer(help="Measure this machine; each command starts a server of its own.", no_args_is_help=True)


OutputOption = Annotated[Path | None, typer.Option(help="Write the figures to this file too, as JSON.")]
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
    output: OutputOption = None,
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
    _report(figures, output)


@bench_app.command()
def service(
    rounds: Annotated[int, typer.Option(min=1, help="Clicks of each kind.")] = 100,
    model: ModelOption = DEFAULT_MODEL,
    output: OutputOption = None,
) -> None:
    """What the service adds to a click, and whether slow senders disturb others."""
    from triton_sam.bench.service import overhead

    with _served(model) as (running, sample):
        figures = list(overhead(running, sample, rounds))
    _report(figures, output)


@bench_app.command()
def page(
    rounds: Annotated[int, typer.Option(min=1, help="Hovers of each kind.")] = 60,
    model: ModelOption = DEFAULT_MODEL,
    output: OutputOption = None,
) -> None:
    """What the web page adds to the server's time, in a real Chromium (needs the extra "dev")."""
    from triton_sam.bench.page import measure_page

    with _served(model) as (running, sample):
        figures = list(measure_page(running, sample, rounds))
    _report(figures, output)


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


def _report(figures: list[Figure], output: Path | None) -> None:
    """Prints the table and writes it where asked; exit code 1 where a bar is missed."""
    from triton_sam.bench import report

    report.show(figures)
    if output is not None:
        report.write(figures, output)
    if not all(figure.reached for figure in figures):
        raise typer.Exit(1)
