"""The command line. Thin: every command calls one function and prints what it says."""

from __future__ import annotations

import enum
import json
import logging
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image, ImageOps
from rich.logging import RichHandler
from rich.text import Text

from triton_sam import __version__, logs
from triton_sam.cli import ask, bench, models
from triton_sam.cli.interrupts import Interrupts
from triton_sam.cli.models import RepositoryOption
from triton_sam.cli.progress import download_progress
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.console import err, out
from triton_sam.core.images import to_rgb
from triton_sam.core.masks import overlay
from triton_sam.errors import InvalidInput, ServerError, TritonSamError
from triton_sam.models.catalog import DEFAULT_MODEL
from triton_sam.settings import get_settings

app = typer.Typer(
    name="triton-sam",
    help="Promptable vision models on NVIDIA Triton Inference Server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(models.models_app, name="models")
app.add_typer(bench.bench_app, name="bench")
for command in (models.pull, models.export, models.setup, ask.ask):
    app.command()(command)


class LogLevel(str, enum.Enum):
    """How much the server writes to its log."""

    error = "error"
    warning = "warning"
    info = "info"
    debug = "debug"


HttpPort = Annotated[int, typer.Option(min=0, max=65535, help="HTTP port; 0 takes a free one.")]
GrpcPort = Annotated[int, typer.Option(min=0, max=65535, help="gRPC port.")]
MetricsPort = Annotated[int, typer.Option(min=0, max=65535, help="Prometheus metrics port.")]
ServicePort = Annotated[
    int, typer.Option(min=0, max=65535, help="Port of the service: HTTP for tools and pages, docs at /docs.")
]


def _version(value: bool) -> None:
    if value:
        out.print(f"triton-sam {__version__}")
        raise typer.Exit


@app.callback()
def _main_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=err, show_path=False, show_time=False)],
        force=True,
    )


@app.command()
def serve(
    model_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="Default: all that are set up.")
    ] = None,
    http_port: HttpPort = 8000,
    grpc_port: GrpcPort = 8001,
    metrics_port: MetricsPort = 8002,
    service_port: ServicePort = 8080,
    model_repository: RepositoryOption = None,
    host: Annotated[
        str, typer.Option(help="Address of the service; others than loopback open it to the network.")
    ] = "127.0.0.1",
    triton_host: Annotated[
        str, typer.Option(help="Address of Triton itself, which checks nothing: for trusted networks only.")
    ] = "127.0.0.1",
    raw: Annotated[bool, typer.Option("--raw", help="Load the plain encoder and decoder models too.")] = False,
    log_level: Annotated[LogLevel, typer.Option(help="What Triton writes to its log.")] = LogLevel.warning,
) -> None:
    """Start Triton and the models; Ctrl-C stops all."""
    from triton_sam.server.host import check_platform
    from triton_sam.serving import Ports, prepare, serving

    check_platform()
    settings = get_settings()
    logs.set_up(settings)
    with download_progress() as progress:
        served = prepare(model_ids or [], settings, model_repository, progress)
    ports = Ports(http_port, grpc_port, metrics_port, service_port)
    started = time.monotonic()
    with (
        Interrupts() as interrupts,
        serving(
            served.repository,
            served.segmenters,
            settings,
            vlms=served.vlms,
            bind=host,
            triton_bind=triton_host,
            ports=ports,
            raw=raw,
            log_level=log_level.value,
            shall_stop=interrupts,
        ) as running,
    ):
        out.print(f"ready after {time.monotonic() - started:.1f} s: {', '.join((*served.segmenters, *served.vlms))}")
        _print_urls(running.urls, running.supervisor.process.log_path)
        _invite(running.urls)
        _wait(running.supervisor, interrupts)


@app.command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop after the picture.")] = False,
    vlm: Annotated[bool, typer.Option("--vlm", help="Ask a toy vision-language model too (needs torch).")] = False,
    folder: Annotated[Path, typer.Option(help="Where the pictures go.")] = Path("demo"),
    http_port: HttpPort = 8000,
    grpc_port: GrpcPort = 8001,
    metrics_port: MetricsPort = 8002,
    service_port: ServicePort = 8080,
) -> None:
    """From nothing to a mask: pull, serve, segment a sample photograph by one click."""
    from triton_sam.cli.demo import SAMPLE_CLICK, run_demo
    from triton_sam.cli.demo_vlm import VLM_DEMO_MODEL, run_vlm_demo
    from triton_sam.server.host import check_platform
    from triton_sam.serving import Ports, prepare, serving

    check_platform()
    settings = get_settings()
    logs.set_up(settings)
    with download_progress() as progress:
        served = prepare([], settings, None, progress)
        if not served.segmenters:  # nothing but models for other tools, or for questions
            served = prepare([DEFAULT_MODEL], settings, None, progress)
        vlms = prepare([VLM_DEMO_MODEL], settings, None, progress).vlms if vlm else {}
    started = time.monotonic()
    ports = Ports(http_port, grpc_port, metrics_port, service_port)
    with (
        Interrupts() as interrupts,
        serving(
            served.repository, served.segmenters, settings, vlms=vlms, ports=ports, shall_stop=interrupts
        ) as running,
    ):
        name, spec = next(iter(served.segmenters.items()))
        out.print(f"Triton serves {spec.id} as {name!r}, ready after {time.monotonic() - started:.1f} s")
        result = run_demo(running.urls["HTTP"], name, folder)
        x, y = SAMPLE_CLICK
        out.print(
            f"{result.sample.name} ({result.size[0]} x {result.size[1]}) encoded in {result.encode_seconds:.2f} s, "
            f"click at ({x:g}, {y:g}) answered in {result.click_seconds * 1e3:.0f} ms: "
            f"score {result.score:.3f}, {result.share:.0%} of the picture"
        )
        out.print(f"look at {result.overlay} and {result.mask}")
        if vlm:
            out.print(run_vlm_demo(running.urls["HTTP"], folder).text)
        _print_urls(running.urls, running.supervisor.process.log_path)
        if not once:
            _invite(running.urls)
            _wait(running.supervisor, interrupts)


@app.command()
def segment(
    image: Annotated[Path, typer.Argument(help="An image file.")],
    point: Annotated[
        list[str] | None, typer.Option(help="x,y or x,y,label (1 object, 0 background); repeatable.")
    ] = None,
    box: Annotated[list[str] | None, typer.Option(help="x0,y0,x1,y1; several boxes are several objects.")] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--out", help="*.json: the result; mask*.png: the mask; other .png: an overlay. Repeatable."),
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the segmenter on the server.")] = "sam2",
    url: Annotated[str | None, typer.Option(help="Server address; default TRITON_URL or localhost:8000.")] = None,
) -> None:
    """Segment an image on a running server."""
    targets = output or [Path("overlay.png")]
    for target in targets:
        if target.suffix.lower() not in (".png", ".json"):
            raise InvalidInput(f"{target} is no .png or .json file: name the output after what it shall be")
        if not target.resolve().parent.is_dir():
            raise InvalidInput(f"the folder of {target} does not exist: create it first")
    points = [_point(text) for text in point or []]
    boxes = [_numbers(text, (4,), "--box x0,y0,x1,y1") for text in box or []]
    if len(boxes) > 1 and points:
        raise InvalidInput("several boxes beside points are ambiguous: give one box with points, or boxes alone")
    if not points and not boxes:
        raise InvalidInput("there is nothing to segment: give a --point x,y or a --box x0,y0,x1,y1")
    image = image.expanduser()
    coords = [values[:2] for values in points] or None
    labels = [int(values[2]) if len(values) > 2 else 1 for values in points] or None
    with SAM2TritonClient(url, model) as client:
        client.set_image(image)
        if len(boxes) > 1:
            answer = client.segment(objects=[{"box": corners} for corners in boxes])
        else:
            answer = client.segment(coords, labels, boxes[0] if boxes else None)
    found = answer.masks
    for target in targets:
        if target.suffix.lower() == ".json":
            entries = [{"score": float(score), "rle": found.rle(index)} for index, score in enumerate(found.scores)]
            target.write_text(json.dumps({**_without_masks(answer.result), "masks": entries}, indent=2) + "\n")
        elif target.stem.lower().startswith("mask"):
            Image.fromarray(found.masks.any(axis=0)).convert("L").save(target)
        else:
            with Image.open(image) as picture:
                marks = [(values[0], values[1], int(values[2]) if len(values) > 2 else 1) for values in points]
                overlay(to_rgb(ImageOps.exif_transpose(picture)), found.masks, marks).save(target)
    scores = ", ".join(f"{score:.3f}" for score in found.scores)
    spent = answer.timings_ms.get("total", 0.0)
    out.print(f"{len(found)} mask(s), score {scores}, {spent:.0f} ms on the server: {', '.join(map(str, targets))}")


@app.command()
def doctor() -> None:
    """Look at this machine: what is fine, what is not, and the mend."""
    from triton_sam.cli.doctor import WRONG, examine

    colours = {"fine": "green", "note": "yellow", "wrong": "red"}
    wrong = 0
    for finding in examine(get_settings()):
        wrong += finding.state == WRONG
        out.print(Text(f"{finding.state:5}", colours[finding.state]), f"{finding.name:14} {finding.text}")
    if wrong:
        err.print(f"{wrong} thing(s) must be mended before `triton-sam serve` works")
        raise typer.Exit(1)


def _point(text: str) -> list[float]:
    values = _numbers(text, (2, 3), "--point x,y[,label]")
    if len(values) > 2 and values[2] not in (0, 1):
        raise InvalidInput(f"{text!r} is no --point x,y[,label]: a label is 1 (object) or 0 (background)")
    return values


def _numbers(text: str, counts: tuple[int, ...], usage: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in counts:
        raise InvalidInput(f"{text!r} is no {usage}")
    return values


def _without_masks(result: Any) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in ("mask", "masks")}


def _print_urls(urls: dict[str, str], log_path: Path) -> None:
    for name, url in urls.items():
        out.print(f"  {name:8} {url}")
    out.print(f"  log      {log_path}")


def _invite(urls: dict[str, str]) -> None:
    if "service" in urls:
        out.print(f"open {urls['service']} in a browser to try it")


def _wait(supervisor: Any, interrupts: Interrupts) -> None:
    """Until Ctrl-C, or until the supervisor gives up."""
    out.print("serving until Ctrl-C")
    while not interrupts() and not supervisor.wait(0.2):
        pass
    if not interrupts():
        raise ServerError(f"the server stopped: {supervisor.status['reason']}")
    out.print("stopping: finishing what is in flight")


def main() -> None:
    """Runs the app; an error is one sentence on stderr and exit code 1, ``--debug`` adds the traceback."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(["--debug", *arguments] if debug and arguments else arguments)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except Exception as error:
        if debug:
            err.print_exception()
        elif isinstance(error, TritonSamError):
            err.print(Text("error:", "red"), str(error))
        else:
            text = f"{type(error).__name__}: {error} (this is a bug: --debug shows where)"
            err.print(Text("error:", "red"), text)
        sys.exit(1)


if __name__ == "__main__":
    main()
