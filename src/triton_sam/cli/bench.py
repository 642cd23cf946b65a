"""``triton-sam bench``: figures of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from triton_sam.cli import bench_speed
from triton_sam.cli.bench_speed import BaselineOption, OutputOption, finish
from triton_sam.models.catalog import DEFAULT_MODEL

bench_app = typer.Typer(help="Measure this machine; each command starts a server of its own.", no_args_is_help=True)
for command in (
    bench_speed.encode,
    bench_speed.click,
    bench_speed.session,
    bench_speed.hover,
    bench_speed.throughput,
    bench_speed.memory,
    bench_speed.compare,
    bench_speed.server,
    bench_speed.plot,
):
    bench_app.command()(command)

ModelOption = Annotated[str, typer.Option(help="Id of the model.")]


@bench_app.command()
def service(
    rounds: Annotated[int, typer.Option(min=1, help="Clicks of each kind.")] = 100,
    model: ModelOption = DEFAULT_MODEL,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """What the service adds to a click, and whether slow senders disturb others."""
    from triton_sam.bench.service import measure_service
    from triton_sam.bench.target import Choice, opened

    with opened(Choice(model), service=True) as target:
        result = measure_service(target, rounds)
    finish(result, output, baseline)


@bench_app.command()
def page(
    rounds: Annotated[int, typer.Option(min=1, help="Hovers of each kind.")] = 60,
    model: ModelOption = DEFAULT_MODEL,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """What the web page adds to the server's time, in a real Chromium (needs the extra "dev")."""
    from triton_sam.bench.page import measure_page
    from triton_sam.bench.target import Choice, opened

    with opened(Choice(model), service=True) as target:
        result = measure_page(target, rounds)
    finish(result, output, baseline)


@bench_app.command()
def cpu_encoder(
    rounds: Annotated[int, typer.Option(min=1, help="Encodes of each kind, in turns.")] = 9,
    model: ModelOption = DEFAULT_MODEL,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """The encoders that were made for CPUs against the plain graph: time, and how far their masks agree."""
    import tempfile

    from triton_sam.bench.cpu_encoder import Encoders, measure_cpu_encoder
    from triton_sam.bench.results import Result
    from triton_sam.errors import SetupError
    from triton_sam.models.catalog import get_spec
    from triton_sam.models.specs import CPU_ENCODER_FILE, DECODER_FILE, EIGHT_BIT_ENCODER_FILE, ENCODER_FILE
    from triton_sam.models.weights import WeightStore
    from triton_sam.repository.setup import SetupRequest, set_up
    from triton_sam.settings import get_settings

    spec = get_spec(model)
    result = Result("cpu-encoder", about={"model": model})
    # In a repository of its own: 8 bits that are measured were not asked for elsewhere.
    with tempfile.TemporaryDirectory(prefix="triton-sam-bench-") as repository:
        store = WeightStore(get_settings().home)
        name = set_up(SetupRequest(spec, store, Path(repository), cpu_encoder=True, fast_encoder=True))[0]
        folder = Path(repository) / name / "1"
        files = [folder / file for file in (ENCODER_FILE, CPU_ENCODER_FILE, EIGHT_BIT_ENCODER_FILE)]
        if not all(file.is_file() for file in files):
            raise SetupError(f"{model} has no encoders for CPUs: choose a ready-made model, and pip install onnx")
        result.figures += measure_cpu_encoder(Encoders(*files), folder / DECODER_FILE, spec, rounds)
    finish(result, output, baseline)


@bench_app.command()
def halves(
    checkpoint: Annotated[Path, typer.Option(help="Real weights of the model: random ones prove nothing here.")],
    model: ModelOption = DEFAULT_MODEL,
    photographs: Annotated[int, typer.Option(min=1, max=8, help="How many of the photographs.")] = 4,
    output: OutputOption = None,
    baseline: BaselineOption = None,
) -> None:
    """What half precision does to the torch engine's masks, against float32."""
    from triton_sam.bench.halves import measure_halves
    from triton_sam.bench.results import Result
    from triton_sam.models.catalog import get_spec

    result = Result("halves", about={"model": model, "weights": checkpoint.name})
    result.figures += measure_halves(get_spec(model), checkpoint, photographs)
    finish(result, output, baseline)


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
    baseline: BaselineOption = None,
) -> None:
    """A vision-language model, served against bare transformers: first text, tokens a second."""
    import tempfile

    from triton_sam.bench import vlm as bench
    from triton_sam.bench.results import Result
    from triton_sam.bench.vlm_random import make_random_llava
    from triton_sam.models.vlm_catalog import get_vlm
    from triton_sam.models.vlm_weights import checkpoint_folder
    from triton_sam.repository.vlms import write_vlm
    from triton_sam.serving import Ports, ServingOptions, serving
    from triton_sam.settings import get_settings

    settings = get_settings()
    spec = get_vlm("vlm:llava" if random_llava is not None else model)
    if random_llava is not None:
        checkpoint = make_random_llava(random_llava, layers=layers)
    folder = checkpoint_folder(spec, str(checkpoint or ""))
    with tempfile.TemporaryDirectory() as repository:
        write_vlm(spec, Path(repository), checkpoint)
        ports = Ports(0, 0, 0, 0)
        options = ServingOptions(
            Path(repository), {}, settings, vlms={spec.name: spec}, ports=ports, with_service=False
        )
        with serving(options) as running:
            figures = list(
                bench.measure_vlm(
                    running.urls["HTTP"], spec, folder, settings, rounds=rounds, tokens=tokens, batches=batch or [1, 8]
                )
            )
    finish(Result("vlm", figures, about={"model": spec.id}, machine=bench.about()), output, baseline)
