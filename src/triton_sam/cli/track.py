"""``triton-sam track``: objects through a video, from a running server."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from triton_sam.cli.image_options import numbers
from triton_sam.cli.server_options import TokenOption
from triton_sam.cli.track_job import Report, TrackJob, TrackRun
from triton_sam.cli.track_options import Targets, direction_of, places_of, track_prompts
from triton_sam.cli.track_words import track_words
from triton_sam.console import err, out
from triton_sam.errors import JobInterrupted

_INTERRUPTED = 130
#: Between two lines where there is no terminal for a bar.
_LINE_SECONDS = 60.0


# Many parameters: each is an option of the command line.
def track(
    video: Annotated[
        str,
        typer.Argument(
            metavar="VIDEO|FOLDER|-",
            help="A video file, a folder of images, a TIFF or Zarr stack, or - for a stream on stdin.",
        ),
    ],
    point: Annotated[
        list[str] | None,
        typer.Option(metavar="FRAME,X,Y[,LABEL][,OBJECT]", help="Label 1 object (default), 0 background. Repeatable."),
    ] = None,
    box: Annotated[
        list[str] | None, typer.Option(metavar="FRAME,X0,Y0,X1,Y1[,OBJECT]", help="Object 1 by default. Repeatable.")
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(metavar="FRAME,FILE[,OBJECT]", help="Image of the video's size, not black where the object is."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="WORDS", help="Tracks all that these words name, instead of prompts. Repeatable."),
    ] = None,
    text_frame: Annotated[int, typer.Option(min=0, help="Of --text: the frame in which is looked first.")] = 0,
    every: Annotated[
        int | None,
        typer.Option(min=1, metavar="FRAMES", help="Of --text: looks again after so many frames for what is new."),
    ] = None,
    score_threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Of --text: what has a higher score is tracked; default 0.5.")
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--out",
            help="*.mp4, .mov, .mkv: an overlay; *.json: masks; FOLDER/: a label PNG a frame; *.tif, *.zarr: a label "
            "volume. Repeatable.",
        ),
    ] = None,
    json_form: Annotated[
        str,
        typer.Option("--json", help="youtube-vis: a record an object; coco: one for each frame and object."),
    ] = "youtube-vis",
    reverse: Annotated[
        bool, typer.Option("--reverse", help="Track backward, from the last frame with a prompt.")
    ] = False,
    both: Annotated[
        bool,
        typer.Option("--both", help="Track forward and backward from the first prompt; slices (z) are, by default."),
    ] = False,
    forward: Annotated[bool, typer.Option("--forward", help="Track forward only, also through slices.")] = False,
    axis: Annotated[
        str | None, typer.Option(help="z: frames are slices; t: times. Default: as a stack's metadata say, else t.")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="C=1,T=0", help="Of a stack: where its other dimensions are held, from 0 on. Repeatable."),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(metavar="TZCYX", help="Of a stack: a letter for each dimension, where the file does not say."),
    ] = None,
    contrast: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH", help="Of a stack: values for black and white. Default: percentiles; 8 bits as they are."
        ),
    ] = None,
    fps: Annotated[
        float | None, typer.Option(min=0.01, max=1000, help="Of overlays; default the video's own times, else 25.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Name of the segmenter on the server; default: one that takes videos, set up if none is."),
    ] = None,
    text_model: Annotated[
        str | None, typer.Option(help="Name of the segmenter that takes text; default: one on the server, or started.")
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="Address of Triton; if one does not answer, the next one goes on. Default TRITON_URL, a server that "
            "runs here, or one for this run."
        ),
    ] = None,
    token: TokenOption = None,
    state_every: Annotated[
        int, typer.Option(min=1, help="Frames after which a run can go on elsewhere, or after it was killed.")
    ] = 30,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for one request.")] = 120.0,
) -> None:
    """Track objects through a video; the same command goes on where a run stopped.

    Frames count from 0, and coordinates are pixels of the video.
    """
    from triton_sam.cli.track_server import TrackModels, track_server  # imports protobuf
    from triton_sam.cli.track_words import word_finder
    from triton_sam.client.video_client import SAM2VideoClient
    from triton_sam.video.opening import open_clip

    words = track_words(text or [], text_frame, every, score_threshold, beside=bool(point or box or mask))
    prompts = [] if words is not None else track_prompts(point or [], box or [], mask or [])
    targets = Targets.of(output or ["overlay.mp4"], json_form)
    window = None if contrast is None else numbers(contrast, (2,), "--contrast LOW,HIGH")
    clip = open_clip(video, axis=axis, at=places_of(at) if at else None, contrast=window, axes=axes)
    directions = direction_of(clip, forward=forward, reverse=reverse, both=both)
    job = TrackJob(video, clip, prompts, targets, model or "", directions, fps, words)
    job.check()
    for note in [*clip.notes, *([f"{clip.contrast.note}; --contrast LOW,HIGH sets it"] if clip.contrast else [])]:
        err.print(note)
    models = TrackModels(model, text_model, finds=words is not None)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(track_server(url, models, token))
        job = dataclasses.replace(job, model=server.model)
        client = stack.enter_context(
            SAM2VideoClient(server.urls, server.model, token=token, timeout=timeout, state_every=state_every)
        )
        find = None
        if words is not None:
            words = dataclasses.replace(words, model=server.text_model)
            job = dataclasses.replace(job, words=words)
            find = stack.enter_context(word_finder(server.urls, words, clip.size, token, timeout))
        try:
            with _progress() as report:
                summary = TrackRun(job, client, report, find).run()
        except JobInterrupted as stopped:
            err.print(str(stopped))
            raise typer.Exit(_INTERRUPTED) from None
    out.print(summary)


@contextlib.contextmanager
def _progress() -> Iterator[Report]:
    """A bar with frames a second on stderr; where that is no terminal, a line a minute."""
    if not err.is_terminal:
        yield _Lines().report
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err) as progress:
        task = progress.add_task("starting", total=None, rate="")
        rate = _Rate()

        def report(what: str, done: int, of: int | None) -> None:
            total = None if of is None else max(of, done)
            progress.update(task, description=what, completed=done, total=total, rate=rate.text(what, done))

        yield report


class _Lines:
    def __init__(self) -> None:
        self._next = time.monotonic() + _LINE_SECONDS
        self._rate = _Rate()

    def report(self, what: str, done: int, of: int | None) -> None:
        rate = self._rate.text(what, done)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            err.print(f"{what} frame {done:,}{'' if of is None else f' of {of:,}'}, {rate}")


class _Rate:
    """Frames a second since the work of this kind began."""

    def __init__(self) -> None:
        self._what, self._began, self._first = "", 0.0, 0

    def text(self, what: str, done: int) -> str:
        now = time.monotonic()
        if what != self._what:
            self._what, self._began, self._first = what, now, done
        spent = now - self._began
        return f"{(done - self._first) / spent:.1f} frames/s" if spent > 0 else ""
