"""``triton-sam batch``: masks for many images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from triton_sam.cli.batch_progress import job_progress, show_failures, show_status, stop_on_interrupt
from triton_sam.cli.image_options import ChannelOption, WindowOption, window_of
from triton_sam.cli.server_options import TokenOption
from triton_sam.cli.words import AnyModelOption, MaxInstancesOption, ScoreThresholdOption, TextOption
from triton_sam.console import err, out
from triton_sam.errors import InvalidInput, JobInterrupted

_INTERRUPTED = 130


class _RunByDefault(TyperGroup):
    """``batch FOLDER`` is ``batch run FOLDER``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


batch_app = typer.Typer(
    help="Masks for many images; a job that was stopped or killed goes on with the same command.",
    cls=_RunByDefault,
    no_args_is_help=True,
)
FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The job's output folder.")]


# Many parameters: each is an option of the command line.
@batch_app.command("run")
def batch_run(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...", help="Folders, image files, TIFF stacks, Zarr arrays, globs, or text files of paths."
        ),
    ],
    output: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for results; the job's state is in it.")],
    text: TextOption = None,
    score_threshold: ScoreThresholdOption = None,
    max_instances: MaxInstancesOption = None,
    everything: Annotated[bool, typer.Option("--everything", help="Find all objects of each image.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="An option of everything mode: points_per_side=16. Repeatable."
        ),
    ] = None,
    coco: Annotated[Path | None, typer.Option(help="COCO file whose boxes are the prompts.")] = None,
    csv: Annotated[
        Path | None, typer.Option(help="CSV file of prompts: file,x,y,label or file,x0,y0,x1,y1; column object groups.")
    ] = None,
    save: Annotated[
        str, typer.Option(help="What to write, separated by commas: coco, geojson, labels, overlays.")
    ] = "coco",
    label_format: Annotated[
        str | None, typer.Option(help="Of label images: png (8 or 16 bits, the default), tiff16, tiff32.")
    ] = None,
    clean: Annotated[int, typer.Option(help="Fill holes and drop islands with fewer pixels than this.", min=0)] = 0,
    channel: ChannelOption = None,
    window: WindowOption = None,
    model: AnyModelOption = None,
    url: Annotated[
        list[str] | None,
        typer.Option(help="Address of Triton or of the service; several share the job. Default TRITON_URL."),
    ] = None,
    token: TokenOption = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Run on so many Dask processes of this machine, for images that are slow to read."),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Run on the workers of this Dask scheduler.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try images again that have failed.")] = False,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for servers that do not respond, before the job stops.")
    ] = 600.0,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="Seconds for one request; default 300, with --everything 1000.")
    ] = None,
) -> None:
    """Segment many images on a running server; the same command goes on where a job stopped.

    Ctrl-C finishes what is in flight.
    """
    from triton_sam.batch.job import BatchJob
    from triton_sam.batch.state.status import job_status

    if settings and not everything:
        raise InvalidInput("--set has options of everything mode: add --everything")
    job = BatchJob(
        inputs,
        output,
        text=text or None,
        score_threshold=score_threshold,
        max_instances=max_instances,
        everything=everything_options(settings or []) if everything else None,
        coco=coco,
        csv=csv,
        save=[name.strip() for name in save.split(",") if name.strip()],
        label_format=label_format,
        clean=clean or None,
        channel=channel,
        window=window_of(window),
        model=model,
        url=url,
        token=token,
        workers=workers,
        scheduler=scheduler,
        retry_failed=retry_failed,
        patience=patience,
        timeout=timeout,
    )
    try:
        with job_progress() as report, stop_on_interrupt(job):
            summary = job.run(report)
    except JobInterrupted as stopped:
        err.print(str(stopped))
        raise typer.Exit(_INTERRUPTED) from None
    out.print(summary.text)
    if summary.waiting:
        err.print("stopped: the same command goes on")
        raise typer.Exit(_INTERRUPTED)
    if summary.failed:
        show_failures(job_status(job.folder))
        raise typer.Exit(1)


@batch_app.command("status")
def batch_status(folder: FolderArgument) -> None:
    """Show how far a job is, while it runs or later."""
    from triton_sam.batch.state.status import job_status

    show_status(job_status(folder.expanduser()))


def everything_options(words: Sequence[str]) -> dict[str, Any]:
    """``["points_per_side=16"]`` -> ``{"points_per_side": 16}``; InvalidInput if one is malformed."""
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise InvalidInput(f"--set takes NAME=VALUE, for example points_per_side=16, not {word!r}")
        try:
            options[name] = json.loads(value)
        except ValueError:
            raise InvalidInput(f"the value of --set {word} is not a number, true, false or a list") from None
    return options
