"""``triton-sam bench``: figures of this machine."""

from __future__ import annotations

import enum
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from triton_sam.catalog import DEFAULT_MODEL
from triton_sam.console import err, out

bench_app = typer.Typer(help="Measure this machine; each command starts a server of its own.", no_args_is_help=True)


class Protocol(str, enum.Enum):
    """How the client speaks to Triton."""

    http = "HTTP"
    grpc = "gRPC"


@bench_app.callback()
def _bench() -> None:
    """Keeps `hover` a command of its own while it is the only one."""


@bench_app.command()
def hover(
    sessions: Annotated[int, typer.Option(min=1, help="Mice that move at the same time.")] = 20,
    hovers: Annotated[int, typer.Option(min=1, help="Predictions that each of them begins.")] = 100,
    rate: Annotated[float, typer.Option(min=0.1, help="Hovers a second, of each.")] = 60.0,
    protocol: Annotated[list[Protocol] | None, typer.Option(help="Default: both.")] = None,
    model: Annotated[str, typer.Option(help="Id of the model.")] = DEFAULT_MODEL,
) -> None:
    """Hover faster than the server can decode: what is executed, and how soon the last hover is answered."""
    from triton_sam.bench.hover import Load, measure_hover
    from triton_sam.demo import sample_photograph
    from triton_sam.serving import Ports, prepare, serving
    from triton_sam.settings import get_settings

    settings = get_settings()
    load = Load(sessions, hovers, rate)
    repository, segmenters = prepare([model], settings, None)
    with serving(repository, segmenters, settings, ports=Ports(0, 0, 0, 0), with_service=False) as running:
        figures = [
            figure
            for chosen in protocol or list(Protocol)
            for figure in measure_hover(running, sample_photograph(), load, chosen.value)
        ]
    table = Table("what", "measured", "bar", "detail")
    for figure in figures:
        bar = "" if figure.bar is None else f"<= {figure.bar:.3g}"
        table.add_row(
            figure.name, Text(f"{figure.value:.3g} {figure.unit}", "" if figure.reached else "red"), bar, figure.detail
        )
    out.print(table)
    missed = [figure.name for figure in figures if not figure.reached]
    if missed:
        err.print(f"not reached: {'; '.join(missed)}")
        raise typer.Exit(1)
