"""The command line of the benchmarks: ``python -m benchmarks --help``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from triton_sam.bench.publish import publish
from triton_sam.bench.results import Result, command_line
from triton_sam.cli.bench_options import BaselineOption, OutputOption
from triton_sam.errors import TritonSamError
from triton_sam.models.catalog import DEFAULT_MODEL

app = typer.Typer(
    help="Benchmarks of the project itself; `triton-sam bench` is for users.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
ModelOption = Annotated[str, typer.Option(help="Id of the model.")]


@app.command()
def service(
    rounds: Annotated[int, typer.Option(min=1, help="Clicks of each kind.")] = 100,
    model: ModelOption = DEFAULT_MODEL,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """What the service adds to a click, and whether slow senders delay others."""
    from benchmarks.service import run_service

    _finish(run_service(model, rounds), output, baseline)


@app.command()
def page(
    rounds: Annotated[int, typer.Option(min=1, help="Hovers of each kind.")] = 60,
    model: ModelOption = DEFAULT_MODEL,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """What the web page adds to the server's time, in a real Chromium (needs the extra "dev")."""
    from benchmarks.page import run_page

    _finish(run_page(model, rounds), output, baseline)


@app.command()
def page_objects(
    objects: Annotated[int, typer.Option(min=2, help="How many.")] = 500,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """The page's longest tasks with many objects, in a real Chromium; no model is needed."""
    from benchmarks.page_objects import run_page_objects

    _finish(run_page_objects(objects), output, baseline)


@app.command()
def cpu_encoder(
    rounds: Annotated[int, typer.Option(min=1, help="Encodes of each kind, in turns.")] = 9,
    model: ModelOption = DEFAULT_MODEL,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """The encoders rewritten for CPUs against the published graph: time, and how far their masks agree."""
    from benchmarks.cpu_encoder import run_cpu_encoder

    _finish(run_cpu_encoder(model, rounds), output, baseline)


@app.command()
def half_precision(
    checkpoint: Annotated[Path, typer.Option(help="Real weights of the model: random ones prove nothing here.")],
    model: ModelOption = DEFAULT_MODEL,
    photographs: Annotated[int, typer.Option(min=1, max=8, help="How many of the photographs.")] = 4,
    folder: Annotated[Path | None, typer.Option(help="Of the photographs; default: scikit-image's.")] = None,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """What half precision does to the torch engine's masks, against float32."""
    from benchmarks.half_precision import run_half_precision

    _finish(run_half_precision(model, checkpoint, photographs, folder), output, baseline)


@app.command()
def image_side(
    checkpoint: Annotated[Path, typer.Option(help="Real weights of the model: random ones prove nothing here.")],
    model: ModelOption = DEFAULT_MODEL,
    side: Annotated[int, typer.Option(min=128, help="Of the model's input, pixels.")] = 512,
    photographs: Annotated[int, typer.Option(min=1, max=8, help="How many of the photographs.")] = 6,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """What a smaller input side does to masks, against the side that the model was trained with."""
    from benchmarks.image_side import run_image_side

    _finish(run_image_side(model, checkpoint, photographs, side), output, baseline)


@app.command()
def video_cpu(
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 7,
    frames: Annotated[int, typer.Option(min=1, help="Frames of a turn.")] = 6,
    objects: Annotated[list[int] | None, typer.Option(min=1, help="How many are tracked; default 1 and 5.")] = None,
    side: Annotated[int, typer.Option(min=128, help="Of the model's input, pixels.")] = 512,
    model: Annotated[str, typer.Option(help="Id of a model with a memory.")] = "sam2.1:tiny",
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """A tracked frame on a CPU, served, against transformers' session; random weights."""
    from benchmarks.video_cpu import VideoCpuPlan, run_video_cpu

    plan = VideoCpuPlan(model, side, tuple(objects or (1, 5)), rounds, frames)
    _finish(run_video_cpu(plan), output, baseline)


# Many parameters: each is an option of the command, and typer reads them from the signature.
@app.command()
def vlm(
    model: Annotated[str, typer.Option(help="Id of a model that transformers itself generates with.")] = "vlm:shapes",
    checkpoint: Annotated[Path | None, typer.Option(help="A folder in place of the catalogue's checkpoint.")] = None,
    random_llava: Annotated[
        Path | None, typer.Option(help="Write LLaVA 1.5 7B with random weights to this folder (14 GB), and use it.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the random LLaVA, to try a small machine.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in turns, after two to warm up.")] = 5,
    tokens: Annotated[int, typer.Option(min=2, help="New tokens of each answer.")] = 128,
    batch: Annotated[list[int] | None, typer.Option(help="Questions at a time; default 1 and 8.")] = None,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """A vision-language model served by Triton against transformers alone: first text, tokens a second."""
    from benchmarks.vlm import VlmPlan, run_vlm

    if random_llava is not None:
        from benchmarks.random_llava import make_random_llava

        model, checkpoint = "vlm:llava", make_random_llava(random_llava, layers=layers)
    _finish(run_vlm(model, checkpoint, VlmPlan(rounds, tokens, tuple(batch or (1, 8)))), output, baseline)


@app.command()
def exports(ids: Annotated[list[str] | None, typer.Argument(help="Ids of models; default: all.")] = None) -> None:
    """Export every model at full size with random weights: time, memory, exactness. Writes docs/data/exports.json."""
    from benchmarks.exports import run_exports

    run_exports(ids)


@app.command()
def tuning(output: Annotated[Path, typer.Argument(help="The JSON file to write: docs/data/tuning.json.")]) -> None:
    """Two values of a setting against each other, in turns, for docs/guides/slow.md."""
    from benchmarks.tuning import run_tuning

    run_tuning(output)


def _finish(result: Result, output: Path | None, baseline: Path | None) -> None:
    result.command = command_line("python -m benchmarks")
    if not publish(result, output, baseline):
        raise typer.Exit(1)


if __name__ == "__main__":
    try:
        app()
    except TritonSamError as error:
        sys.exit(f"error: {error}")
