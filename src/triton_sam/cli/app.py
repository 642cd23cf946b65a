"""The app of the command line, and the commands that serve. Each calls one function and prints its result."""

from __future__ import annotations

import enum
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from triton_sam import __version__
from triton_sam.cli import ask, batch, bench, everything, models, segment, track
from triton_sam.cli.models import RepositoryOption
from triton_sam.cli.progress import download_progress
from triton_sam.console import err, log_handler, out
from triton_sam.errors import TritonSamError
from triton_sam.settings import get_settings

if TYPE_CHECKING:
    from triton_sam.serving import RunningServer

app = typer.Typer(
    name="triton-sam",
    help="Promptable vision models on NVIDIA Triton Inference Server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
    int, typer.Option(min=0, max=65535, help="Port of the service: the page, and HTTP for tools; docs at /docs.")
]


def _version(value: bool) -> None:
    if value:
        out.print(f"triton-sam {__version__}")
        raise typer.Exit


@app.callback()
def _main_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works at any position.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(message)s",
        handlers=[log_handler()],
        force=True,
    )


# Many parameters: each is an option of the command, and typer reads them from the signature.
def serve(
    model_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="For example sam2:tiny; default: all that are set up, or else sam2:tiny."),
    ] = None,
    http_port: HttpPort = 8000,
    grpc_port: GrpcPort = 8001,
    metrics_port: MetricsPort = 8002,
    service_port: ServicePort = 8080,
    model_repository: RepositoryOption = None,
    host: Annotated[
        str, typer.Option(help="Address of the service; any but loopback opens it to the network.")
    ] = "127.0.0.1",
    triton_host: Annotated[
        str, typer.Option(help="Address of Triton itself, which checks nothing: for trusted networks only.")
    ] = "127.0.0.1",
    raw: Annotated[bool, typer.Option("--raw", help="Load the plain encoder and decoder models too.")] = False,
    gpus: Annotated[
        str, typer.Option(metavar="0,1", help="GPUs of the segmenters, separated by commas; default: all.")
    ] = "",
    log_level: Annotated[LogLevel, typer.Option(help="What Triton writes to its log.")] = LogLevel.warning,
) -> None:
    """Start Triton, the models and the service; Ctrl-C stops them."""
    from triton_sam.serving import Ports, ServeRequest, serve_models

    request = ServeRequest(
        ids=model_ids or [],
        repository=model_repository,
        bind=host,
        triton_bind=triton_host,
        ports=Ports(http_port, grpc_port, metrics_port, service_port),
        raw=raw,
        gpus=gpus,
        log_level=log_level.value,
    )
    with serve_models(request, get_settings(), download_progress) as running:
        out.print(f"ready after {running.ready_seconds:.1f} s: {', '.join((*running.segmenters, *running.vlms))}")
        _print_urls(running)
        _wait(running)


# Many parameters: each is an option of the command, and typer reads them from the signature.
def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop after the picture.")] = False,
    vlm: Annotated[bool, typer.Option("--vlm", help="Ask a toy vision-language model too (needs torch).")] = False,
    video: Annotated[
        bool, typer.Option("--video", help="Track an object through a generated clip instead (needs PyAV).")
    ] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Find drawn shapes by words and an example instead, without a download.")
    ] = False,
    folder: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("demo"),
    http_port: HttpPort = 8000,
    grpc_port: GrpcPort = 8001,
    metrics_port: MetricsPort = 8002,
    service_port: ServicePort = 8080,
) -> None:
    """Download a model, serve it, and segment a sample photograph with one click."""
    from triton_sam.cli.demo import choose_models, run_demo, run_video_demo
    from triton_sam.cli.demo_vlm import run_vlm_demo
    from triton_sam.cli.demo_words import run_words_demo
    from triton_sam.serving import Ports, ServeRequest, serve_models

    settings = get_settings()
    ports = Ports(http_port, grpc_port, metrics_port, service_port)
    request = ServeRequest(ids=choose_models(settings, vlm=vlm, video=video, text=text), ports=ports)
    with serve_models(request, settings, download_progress) as running:
        name, spec = next(iter(running.segmenters.items()))
        out.print(f"Triton serves {spec.id} as {name!r}, ready after {running.ready_seconds:.1f} s")
        if text:
            out.print(run_words_demo(running.urls["HTTP"], name, spec.id, folder).text)
        elif video:
            out.print(run_video_demo(running.urls["HTTP"], name, spec.id, folder))
        else:
            out.print(run_demo(running.urls["HTTP"], name, folder).text)
        if vlm:
            out.print(run_vlm_demo(running.urls["HTTP"], folder).text)
        if not once:
            _print_urls(running)
            _wait(running)


def doctor() -> None:
    """Check this machine: what works, what does not, and how to fix it. Lists GPUs, and devices of running servers."""
    from triton_sam.cli.doctor import examine
    from triton_sam.cli.findings import FINE, NOTE, OPTIONAL, WRONG

    colours = {FINE: "green", NOTE: "yellow", WRONG: "red", OPTIONAL: "dim"}
    wrong = 0
    for finding in examine(get_settings()):
        wrong += finding.state == WRONG
        out.print(Text(f"{finding.state:5}", colours[finding.state]), f"{finding.name:14} {finding.text}")
    if wrong:
        err.print("1 problem hinders what is set up" if wrong == 1 else f"{wrong} problems hinder what is set up")
        raise typer.Exit(1)


# In the order in which a new user needs them; `--help` lists them so.
_COMMANDS = (
    demo,
    serve,
    segment.segment,
    everything.everything,
    track.track,
    ask.ask,
    models.setup,
    doctor,
    models.pull,
    models.export,
)
for command in _COMMANDS:
    app.command()(command)
app.add_typer(batch.batch_app, name="batch")
app.add_typer(models.models_app, name="models")
app.add_typer(bench.bench_app, name="bench")


def _print_urls(running: RunningServer) -> None:
    for name, url in running.urls.items():
        out.print(f"  {name:8} {url}")
    out.print(f"  log      {running.supervisor.process.log_path}")


def _wait(running: RunningServer) -> None:
    """Blocks until Ctrl-C; ServerError if the supervisor gives up before."""
    if "service" in running.urls:
        out.print(f"open {running.urls['service']} in a browser to try it")
    out.print("serving until Ctrl-C")
    running.wait()
    out.print("stopping: finishing the requests in flight")


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
