"""Tracks one video for ``triton-sam track``: a run that was stopped or killed goes on with the same command."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from triton_sam import __version__
from triton_sam.cli.track_folder import Position, fingerprint, folder_of, opened, stopped_by_disk
from triton_sam.cli.track_options import Targets, TrackPrompt, mask_file
from triton_sam.cli.track_words import TrackWords, read_concepts, write_concepts
from triton_sam.client.video_client import SAM2VideoClient
from triton_sam.client.video_concepts import ConceptTracker, Find
from triton_sam.client.video_state import VideoState
from triton_sam.core.images import EncodedImage
from triton_sam.errors import InvalidInput, JobInterrupted, TritonSamError
from triton_sam.video.annotations import VideoFacts, write_coco, write_youtube_vis
from triton_sam.video.clip import Clip, ClipFrame
from triton_sam.video.found import VideoFrame
from triton_sam.video.label_frames import LabelFolder
from triton_sam.video.overlays import OverlayVideo
from triton_sam.video.results import ResultFile
from triton_sam.video.stacks.label_volumes import check_label_volume, label_volume

_NO_LIMIT = 2**62
_COLOURS = 255
#: Called as frames are done: (what is done, frames so far, frames in all if that is known).
Report = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class TrackJob:
    """What is tracked and written.

    Attributes:
        name: of the video, as it was given.
        directions: ``forward``, ``reverse`` or ``both``.
        rate: frames a second of overlays of frames without times.
        words: what finds the objects; then there are no prompts.
    """

    name: str
    clip: Clip
    prompts: list[TrackPrompt]
    targets: Targets
    model: str
    directions: str = "forward"
    rate: float | None = None
    words: TrackWords | None = None

    @property
    def objects(self) -> list[int]:
        """Those with prompts; what words find is not known yet."""
        return sorted({prompt.object for prompt in self.prompts})

    @property
    def first(self) -> int:
        return self.words.frame if self.words is not None else min(prompt.frame for prompt in self.prompts)

    def passes(self) -> list[tuple[int, bool]]:
        """(first frame, whether backward) of each way through the video."""
        backward = max(prompt.frame for prompt in self.prompts) if self.directions == "reverse" else self.first - 1
        forward = [(self.first, False)] if self.directions != "reverse" else []
        return forward + ([(backward, True)] if self.directions != "forward" and backward >= 0 else [])

    def check(self) -> None:
        """InvalidInput for what cannot be done, before the server is asked."""
        LabelFolder.check(self.objects if self.targets.folders else [])
        self._check_that_nothing_given_is_replaced()
        for prompt in self.prompts:
            if self.clip.length is not None and prompt.frame >= self.clip.length:
                self.clip.frame(prompt.frame)  # says so
            if prompt.mask is not None:
                mask_file(prompt.mask, self.clip.size)
        for path in self.targets.volumes:
            check_label_volume(path, self.objects)
        self._check_words()
        if self.clip.is_live and self.directions != "forward":
            raise InvalidInput("a stream cannot be tracked backward: save it as a file first")
        if self.clip.is_live and self.targets.volumes:
            raise InvalidInput("only its end tells how many frames a stream has: give a folder, and not a label volume")

    def _check_words(self) -> None:
        if self.words is None:
            return
        if self.clip.is_live:
            raise InvalidInput("words find objects in files, not in a stream: save it as a file first")
        if self.directions == "reverse":
            raise InvalidInput("words find objects on the way forward: use --both, or leave --reverse out")
        if self.clip.length is not None and self.words.frame >= self.clip.length:
            self.clip.frame(self.words.frame)  # says so

    def _check_that_nothing_given_is_replaced(self) -> None:
        frames, masks = self.clip.paths, [prompt.mask for prompt in self.prompts if prompt.mask is not None]
        images = masks + (frames if self.clip.stem(0) is not None else [])  # label images may have the same names
        taken = {path.resolve().parent: path for path in reversed(images)} | {
            path.resolve(): path for path in reversed(frames + masks)
        }
        # A volume replaces a folder with all that is in it.
        inside = {
            folder: path for path in reversed(frames) for folder in path.resolve().parents if folder.suffix == ".zarr"
        }
        taken = inside | taken
        for target in self.targets.all:
            found = taken.get(target.resolve())
            if found is not None:
                raise InvalidInput(f"--out {target} would replace {found}, which is read: give another --out")

    def definition(self) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        content: dict[str, Any] = {
            "video": self.name,
            "content": fingerprint(self.clip.paths),
            "size": list(self.clip.size),
            "first frame": hashlib.sha256(self.clip.frame(0).data).hexdigest(),
            "prompts": [prompt.as_json() for prompt in self.prompts],
            "model": self.model,
            "direction": self.directions,
        }
        if self.clip.meaning:
            content["stack"] = self.clip.meaning
        if self.words is not None:
            content["words"] = self.words.as_json()
        plain: dict[str, Any] = json.loads(json.dumps(content))
        return plain


class TrackRun:
    """One run of a job, with its results so far in a folder beside the first output."""

    def __init__(self, job: TrackJob, client: SAM2VideoClient, report: Report, find: Find | None = None) -> None:
        """
        Args:
            find: of a job with words: finds what they name in a frame.
        """
        self._job, self._client, self._report = job, client, report
        self._done = 0
        self._finder: ConceptTracker | None = None
        if job.words is not None and find is not None:
            self._finder = ConceptTracker(client, find, first=job.words.frame, every=job.words.every)

    def run(self) -> str:
        """Tracks and writes; returns a summary.

        Raises:
            JobInterrupted: after Ctrl-C; everything so far is kept.
            JobStopped: the disk is full or gone; the same.
        """
        with stopped_by_disk(is_kept=not self._job.clip.is_live):
            return self._run_live() if self._job.clip.is_live else self._run_kept()

    def _run_kept(self) -> str:
        job = self._job
        folder = folder_of(job.targets.all[0])
        with opened(folder, job.definition(), job.clip.size) as results:
            try:
                self._track(folder, results)
                frames = job.clip.count()
                with self._sinks(results.size, frames) as put:
                    pictures = iter(job.clip.frames()) if job.targets.overlays else iter(())
                    for index in range(frames):
                        put(next(pictures, None), index, results.get(index))
                        self._report("writing", index + 1, frames)
                self._write_jsons(results, frames)
            except KeyboardInterrupt:
                results.sync()
                raise JobInterrupted(
                    f"stopped with {_frames(results.known)} tracked: the same command goes on"
                ) from None
        shutil.rmtree(folder, ignore_errors=True)
        return self._summary(frames)

    # -- a file or a folder, which can be read again ------------------------------------------------------------

    def _track(self, folder: Path, results: ResultFile) -> None:
        job, state_file = self._job, folder / "state.bin"
        kept = Position.read(state_file)
        passes = job.passes()
        if kept is None:
            state = self._client.init_state(job.clip)
            for prompt in job.prompts:
                self._prompt(state, prompt)
            at, first = 0, passes[0][0]
        else:
            state = self._client.init_state(job.clip, checkpoint=kept.checkpoint, obj_ids=kept.objects)
            at, first = kept.at, kept.next_frame(passes)
            if self._finder is not None:
                self._finder.concepts = read_concepts(folder, kept.objects)
        while at < len(passes):
            reverse = passes[at][1]
            checkpoint = state.checkpoint
            for found in self._frames(state, first, reverse=reverse):
                results.add(found)
                self._done = results.known
                self._report("tracking", self._done, self._expected())
                if state.checkpoint is not None and state.checkpoint is not checkpoint:
                    checkpoint = state.checkpoint  # it is the one behind this very frame
                    if self._finder is not None:
                        if self._finder.looks_in(found.index) and not reverse:
                            continue  # it does not have what was found in this frame
                        write_concepts(folder, self._finder.concepts)
                    results.sync()
                    Position(at, found.index, list(state.obj_ids), checkpoint).write(state_file)
            at += 1
            if at < len(passes):
                first = passes[at][0]
        self._client.close_state(state)

    def _frames(self, state: VideoState, first: int, *, reverse: bool) -> Iterator[VideoFrame]:
        if self._finder is not None and not reverse:
            yield from self._finder.track(state, first)
        elif first >= 0 and (state.obj_ids or self._finder is None):
            yield from self._client.track_frames(state, first, reverse=reverse)

    @property
    def _objects(self) -> list[int]:
        return self._job.objects if self._finder is None else sorted(self._finder.concepts)

    def _expected(self) -> int | None:
        job, total = self._job, self._job.clip.length or self._job.clip.expected
        if job.directions == "reverse":
            return job.passes()[0][0] + 1
        if total is None:
            return None
        return total if job.directions == "both" else max(total - job.first, 1)

    # -- a stream, which comes once -----------------------------------------------------------------------------

    def _run_live(self) -> str:
        """Everything is written as frames come, also what comes before an error; Ctrl-C ends the stream."""
        job = self._job
        failure: TritonSamError | None = None
        with TemporaryDirectory(prefix="triton-sam-track") as folder:
            results = ResultFile(Path(folder) / "results.jsonl", job.clip.size)
            try:
                with self._sinks(job.clip.size) as put:
                    try:
                        self._follow(results, put)
                    except KeyboardInterrupt:
                        self._report("ending", self._done, None)
                    except TritonSamError as error:
                        if not self._done:
                            raise
                        failure = error  # a stream cannot be read again
                self._write_jsons(results, self._done)
            finally:
                results.close()
        if failure is not None:
            raise type(failure)(f"{failure}; what was tracked before it is written, {_frames(self._done)}") from None
        return self._summary(self._done)

    def _follow(self, results: ResultFile, put: Put) -> None:
        """Prompts count from their frames on."""
        job = self._job
        state = self._client.init_state(job.clip)
        waiting = sorted({prompt.frame for prompt in job.prompts})
        for picture in job.clip.frames(0, waiting[0] - 1):
            with _ctrl_c_held_back():
                self._put(put, picture, None)
        while waiting:
            first = waiting.pop(0)
            for prompt in job.prompts:
                if prompt.frame == first:
                    self._prompt(state, prompt)
            most = waiting[0] - first - 1 if waiting else None
            for found in self._client.track_frames(state, first, most):
                with _ctrl_c_held_back():
                    results.add(found)
                    self._put(put, job.clip.frame(found.index) if job.targets.overlays else None, found)
        self._client.close_state(state)

    def _put(self, put: Put, picture: ClipFrame | None, found: VideoFrame | None) -> None:
        put(picture, self._done, found)
        self._done += 1
        self._report("tracking", self._done, None)

    # -- both ---------------------------------------------------------------------------------------------------

    def _prompt(self, state: VideoState, prompt: TrackPrompt) -> None:
        if prompt.mask is not None:
            mask = mask_file(prompt.mask, state.clip.size)
            self._client.add_new_mask(state, prompt.frame, prompt.object, mask)
            return
        self._client.add_new_points_or_box(
            state, prompt.frame, prompt.object, prompt.points or None, prompt.labels or None, prompt.box
        )

    @contextmanager
    def _sinks(self, size: tuple[int, int], frames: int = 0) -> Iterator[Put]:
        """A function that writes a frame to all that has frames, which is complete when the context ends.

        Args:
            frames: how many there will be; of a stream nobody knows.
        """
        job = self._job
        # The colours of the label images, where these have any.
        are_small = all(1 <= name <= _COLOURS for name in self._objects)
        values = {name: name if are_small else place + 1 for place, name in enumerate(self._objects)}
        stems = _stems(job.clip)
        with ExitStack() as stack:
            rate = job.rate or job.clip.rate
            overlays = [stack.enter_context(OverlayVideo(path, size, rate)) for path in job.targets.overlays]
            folders = [LabelFolder(path, size, self._objects) for path in job.targets.folders]
            volumes = [
                stack.enter_context(label_volume(path, job.clip.form, frames, size, self._objects))
                for path in job.targets.volumes
            ]
            if not job.clip.is_live:
                for folder in folders:
                    stack.enter_context(folder.complete_or_empty())

            def put(picture: ClipFrame | None, index: int, found: VideoFrame | None) -> None:
                for folder in folders:
                    folder.write(index, found, stems.get(index))
                for volume in volumes:
                    volume(found)
                if overlays and picture is not None:
                    pixels = _pixels(picture)
                    seconds = None if job.rate else picture.seconds
                    for overlay in overlays:
                        overlay.add(pixels, found, values, seconds)

            yield put

    def _write_jsons(self, results: ResultFile, frames: int) -> None:
        job, stems = self._job, _stems(self._job.clip)

        def file_name(index: int) -> str:
            return f"{stems.get(index, f'{index:06d}')}.png"

        names = {}
        if job.words is not None and self._finder is not None:
            names = {name: job.words.name_of(concept) for name, concept in self._finder.concepts.items()}
        facts = VideoFacts(
            job.name, job.clip.size, frames, file_name, self._objects, f"Tracked with triton-sam {__version__}", names
        )
        write = write_coco if job.targets.json_form == "coco" else write_youtube_vis
        for path in job.targets.jsons:
            write(path, results, facts)

    def _summary(self, frames: int) -> str:
        job, count = self._job, len(self._objects)
        written = ", ".join(map(str, job.targets.all))
        what = f"{count} object{'s' * (count != 1)}"
        if job.words is not None and self._finder is not None:
            what += f" ({job.words.counted(self._finder.concepts.values())})"
        return f"{what} in {_frames(frames)}: {written}"


#: Writes one frame: its picture, its index, and what was found in it.
Put = Callable[[ClipFrame | None, int, VideoFrame | None], None]


def _frames(count: int) -> str:
    return f"{count} frame{'s' * (count != 1)}"


def _pixels(picture: ClipFrame) -> Image.Image:
    try:
        return EncodedImage(picture.data, max_bytes=_NO_LIMIT, max_pixels=_NO_LIMIT).pixels()
    except TritonSamError as error:
        raise type(error)(f"frame {picture.index} cannot be used: {error}") from None


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Ctrl-C counts when the block has ended, so that no frame is in some of the outputs only."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _stems(clip: Clip) -> dict[int, str]:
    """Names of the frames' files; none if two of them are the same."""
    if clip.length is None:
        return {}
    found = {index: stem for index in range(clip.length) if (stem := clip.stem(index)) is not None}
    return found if len(set(found.values())) == len(found) else {}
