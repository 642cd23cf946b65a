"""``triton-sam bench``: measure a model on this machine, or on a running server."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from triton_sam.cli.bench_options import BenchOptions, with_options
from triton_sam.console import err, out

bench_app = typer.Typer(help="Measure this machine; each command starts a server of its own.", no_args_is_help=True)


class Protocol(str, enum.Enum):
    """How the client calls Triton."""

    http = "HTTP"
    grpc = "gRPC"


class Through(str, enum.Enum):
    """What people's programs speak to."""

    service = "service"
    triton = "triton"


@bench_app.command()
@with_options
def encode(options: BenchOptions) -> None:
    """Latency of a new image by every protocol, by step of the server, and of the encoder alone."""
    from triton_sam.bench.encode import measure_encode

    options.run(lambda target: measure_encode(target, options.plan(target, samples=4)))


@bench_app.command()
@with_options
def click(options: BenchOptions) -> None:
    """Latency of a click on a cached image by form and protocol, its bytes, and how it grows with the prompts."""
    from triton_sam.bench.click import measure_click

    options.run(lambda target: measure_click(target, options.plan(target, samples=12)))


@bench_app.command()
@with_options
def session(options: BenchOptions) -> None:
    """Latency of a user's session: a new image and ten masks on it, one after the other."""
    from triton_sam.bench.session import measure_session

    options.run(lambda target: measure_session(target, options.plan(target, samples=2)))


@bench_app.command()
@with_options
def hover(
    options: BenchOptions,
    sessions: Annotated[int, typer.Option(min=1, help="Pointers that move at the same time.")] = 20,
    hovers: Annotated[int, typer.Option(min=1, help="Predictions that each of them begins.")] = 100,
    rate: Annotated[float, typer.Option(min=0.1, help="Hovers a second, of each.")] = 60.0,
    protocol: Annotated[list[Protocol] | None, typer.Option(help="Default: both.")] = None,
) -> None:
    """Hover faster than the server can decode: what is executed, and how soon the last hover is answered.

    Two rounds warm up and one counts: --rounds, --samples and --warm-up have no effect here.
    """
    from triton_sam.bench.hover import HoverLoad, measure_hover

    protocols = [each.value for each in protocol or list(Protocol)]
    options.run(
        lambda target: measure_hover(target, HoverLoad(sessions, hovers, rate, target.pictures.picture.size), protocols)
    )


@bench_app.command()
@with_options
def throughput(
    options: BenchOptions,
    most: Annotated[int, typer.Option(min=1, max=1024, help="Clients at a time, at most; doubled from 1 on.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long each step lasts.")] = 5.0,
    form: Annotated[str, typer.Option(help="How masks are returned: bits, rle, png.")] = "bits",
    least_clicks: Annotated[
        float | None, typer.Option(help="Fails below so many clicks a second with 32 clients.")
    ] = None,
    least_images: Annotated[
        float | None, typer.Option(help="Fails below so many images a second with 16 clients.")
    ] = None,
    boxes: Annotated[
        int, typer.Option(min=0, max=64, help="Also new images with so many boxes each, as batch jobs send them.")
    ] = 0,
) -> None:
    """Clicks and images a second, with more and more concurrent clients until the queue is full.

    Each client is a process. Every step lasts --seconds, after a ramp: --rounds, --samples and --warm-up have no
    effect here.
    """
    from triton_sam.bench.throughput import ThroughputLoad, measure_throughput

    load = ThroughputLoad(most, seconds, form, least_clicks, least_images, boxes)
    options.run(lambda target: measure_throughput(target, load), environment=load.environment)


@bench_app.command()
@with_options
def users(
    options: BenchOptions,
    users: Annotated[int, typer.Option(min=1, max=4096, help="People at the same time.")] = 100,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long they work.")] = 30.0,
    through: Annotated[
        Through, typer.Option(help="The service's hover WebSocket, or Triton's HTTP.")
    ] = Through.service,
    processes: Annotated[int | None, typer.Option(min=1, help="Load-generating ones; default: by cores.")] = None,
    in_flight: Annotated[
        int, typer.Option(min=1, help="Hovers of a person in flight, at most: 3 as in the clients, 1 as in the page.")
    ] = 3,
    image_every: Annotated[float, typer.Option(min=1, help="Seconds after which a person opens a new image.")] = 60.0,
    most_p95: Annotated[
        float | None, typer.Option(help="Fails above so many milliseconds of the newest hover, p95.")
    ] = None,
) -> None:
    """People as they are: hover 20 times a second while moving, pause, click, and a new image every minute.

    Everybody works at the same time, once: --rounds, --samples, --warm-up and --rest have no effect here.
    """
    from triton_sam.bench.users.generator import UsersLoad
    from triton_sam.bench.users.measure import measure_running, measure_users
    from triton_sam.bench.users.schedule import Behaviour

    load = UsersLoad(
        users, seconds, through.value, processes, in_flight, Behaviour(image_seconds=image_every), most_p95
    )
    if options.url:
        options.finish(measure_running(options.url[0], options.model, options.image, options.side, load))
    else:
        is_service = through is Through.service
        options.run(lambda target: measure_users(target, load), service=is_service, environment=load.environment)


@bench_app.command()
@with_options
def memory(
    options: BenchOptions,
    images: Annotated[int, typer.Option(min=0, help="Different images through a small cache; 0: none.")] = 100,
    cache_bytes: Annotated[int, typer.Option(min=1, help="Size of that cache.")] = 200_000_000,
    cached: Annotated[int, typer.Option(min=0, help="Images in a cache that keeps them all; 0: none.")] = 24,
    many: Annotated[bool, typer.Option("--many", help="Shorthand for --cached 200.")] = False,
) -> None:
    """Whether memory stays level when images come and go, and how it grows with the cached images.

    Image after image, once: --rounds, --samples and --warm-up have no effect here.
    """
    from triton_sam.bench.memory import measure_memory

    options.finish(measure_memory(options.target, images, 200 if many else cached, cache_bytes, err.print))


@bench_app.command()
@with_options
def compare(
    options: BenchOptions,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Weights of (d), a file or folder; default: those downloaded, or random ones.")
    ] = None,
) -> None:
    """In turns: (a) the engine alone, (b) this server, (c) the two-stage design, (d) transformers in eager mode."""
    from triton_sam.bench.compare import measure_compare

    options.run(
        lambda target: measure_compare(
            target, options.plan(target, samples=5), options.plan(target, samples=8), checkpoint
        ),
        raw=True,
    )


@bench_app.command()
@with_options
def server(options: BenchOptions) -> None:
    """What the server adds to its engine, how encodes slow down clicks, and how soon it recovers from a kill."""
    from triton_sam.bench.overhead import measure_overhead

    options.run(lambda target: measure_overhead(target, options.plan(target, samples=8)))


@bench_app.command()
def plot(folder: Annotated[Path, typer.Argument(help="Of an earlier run: where its result.json is.")]) -> None:
    """Draw the plots of an earlier run, for example one on a machine without matplotlib."""
    from triton_sam.bench import plots, results

    for path in plots.draw(results.read(folder).charts, folder if folder.is_dir() else folder.parent):
        out.print(f"written: {path}")
