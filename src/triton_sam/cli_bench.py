"""``triton-sam bench``: figures of this machine."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triton_sam.catalog import DEFAULT_MODEL, get_spec

if TYPE_CHECKING:
    from triton_sam.bench.figures import Figure
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


@bench_app.command()
def vlm(
    model: Annotated[str, typer.Option(help="Id of a model that transformers itself generates with.")] = "vlm:shapes",
    checkpoint: Annotated[Path | None, typer.Option(help="A folder in place of the catalogue's checkpoint.")] = None,
    random_llava: Annotated[
        Path | None, typer.Option(help="Write LLaVA 1.5 7B with random weights there first (14 GB), and take that.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Of the random one, for a try on a small machine.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in turns, after two to warm up.")] = 5,
    tokens: Annotated[int, typer.Option(min=2, help="Of each answer.")] = 128,
    batch: Annotated[list[int] | None, typer.Option(help="Questions at a time; default 1 and 8.")] = None,
    output: OutputOption = None,
) -> None:
    """A vision-language model, served against bare transformers: first text, tokens a second."""
    import tempfile

    from triton_sam.bench import vlm as bench
    from triton_sam.bench.vlm_random import make_random_llava
    from triton_sam.serving import Ports, serving
    from triton_sam.settings import get_settings
    from triton_sam.vlm_catalog import get_vlm
    from triton_sam.vlm_repository import write_vlm
    from triton_sam.vlm_weights import checkpoint_folder

    settings = get_settings()
    spec = get_vlm("vlm:llava" if random_llava is not None else model)
    if random_llava is not None:
        checkpoint = make_random_llava(random_llava, layers=layers)
    folder = checkpoint_folder(spec, str(checkpoint or ""))
    with tempfile.TemporaryDirectory() as repository:
        write_vlm(spec, Path(repository), checkpoint)
        ports = Ports(0, 0, 0, 0)
        with serving(
            Path(repository), {}, settings, vlms={spec.name: spec}, ports=ports, with_service=False
        ) as running:
            figures = list(
                bench.measure_vlm(
                    running.urls["HTTP"], spec, folder, settings, rounds=rounds, tokens=tokens, batches=batch or [1, 8]
                )
            )
    _report(figures, output, bench.about())


@contextlib.contextmanager
def _served(model: str) -> Iterator[tuple[Running, Path]]:
    """A server of its own on free ports, and a photograph."""
    from triton_sam.demo import sample_photograph
    from triton_sam.serving import Ports, prepare, serving
    from triton_sam.settings import get_settings

    settings = get_settings()
    served = prepare([get_spec(model).id], settings, None)
    with serving(served.repository, served.segmenters, settings, ports=Ports(0, 0, 0, 0)) as running:
        yield running, sample_photograph()


def _report(figures: list[Figure], output: Path | None, about: dict[str, str] | None = None) -> None:
    """Prints the table and writes it where asked; exit code 1 where a bar is missed."""
    from triton_sam.bench import report

    report.show(figures)
    if output is not None:
        report.write(figures, output, about)
    if not all(figure.reached for figure in figures):
        raise typer.Exit(1)
