"""Makes a video from an upload, or an empty one."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from triton_sam.errors import InvalidInput, TooLarge, UnsupportedMedia
from triton_sam.service.forms import checked_name
from triton_sam.service.json_bodies import short_body
from triton_sam.service.videos.children import run_child
from triton_sam.service.videos.film import Film, FilmFacts
from triton_sam.service.videos.films import Films
from triton_sam.service.videos.frame_store import FRAMES_FILE, INDEX_FILE
from triton_sam.service.videos.spool import VideoFolder
from triton_sam.service.videos.uploads import UPLOAD_FILE, receive_upload, shown_name
from triton_sam.video.clip import ClipLimits, upright_size
from triton_sam.video.stacks.choice import StackChoice
from triton_sam.video.stacks.scale import VolumeForm
from triton_sam.video.untrusted import HEAD_BYTES, file_kind

T = TypeVar("T")
AXES = ("t", "z")
_MAX_SIDE = 100_000
_PLACE = re.compile(r"([A-Za-z]{1,20})=([0-9]{1,9})")
_AT = re.compile(rf"{_PLACE.pattern}(,{_PLACE.pattern}){{0,15}}")


async def film_of_upload(films: Films, request: Request, caller: str) -> Film:
    """The video that is in the request's form. Whatever goes wrong, nothing of it stays on the disk."""

    async def check(fields: Mapping[str, str]) -> None:
        await films.model(fields.get("model") or None)
        _stack_choice(fields)

    await check({})  # before a gigabyte is sent in vain
    with contextlib.ExitStack() as place, _folder(films, caller) as folder:
        place.enter_context(films.place(caller))  # from now on: uploads count
        upload = await receive_upload(
            request, folder.path, films.limits.upload_bytes, lambda size: folder.count(UPLOAD_FILE, size), check
        )
        model = await films.model(upload.fields.get("model") or None)
        choice = _stack_choice(upload.fields)
        await asyncio.to_thread(_check_kind, folder.path / UPLOAD_FILE, upload.name)
        request_document = {"folder": str(folder.path), "file": UPLOAD_FILE, "name": upload.name, "choice": choice}
        found = await unless_gone(request, _decoded(films, folder, caller, request_document))
        folder.unlink(UPLOAD_FILE)
        facts = FilmFacts(
            films.new_id(),
            caller,
            upload.name,
            (found["width"], found["height"]),
            found["fps"],
            found["axis"],
            found["contrast"],
            found["notes"],
            form=found["form"],
        )
        return films.add(facts, model, folder, place.pop_all())


async def empty_film(films: Films, document: dict[str, Any], caller: str) -> Film:
    """A video to which frames come one by one."""
    unknown = sorted(set(document) - {"width", "height", "model", "name", "axis"})
    if unknown:
        raise InvalidInput(f"the field {unknown[0][:60]!r} is unknown: send width, height, model, name and axis only")
    model = await films.model(checked_name(document.get("model"), "model"))
    width, height = (_side(document, field) for field in ("width", "height"))
    if width * height > films.limits.frame_pixels:
        raise TooLarge(f"frames of {width} x {height} pixels are too large: {films.limits.frame_pixels:,} are allowed")
    axis = checked_axis(checked_name(document.get("axis"), "axis"))
    name = shown_name(checked_name(document.get("name"), "name") or "video")
    with _folder(films, caller) as folder:
        axis = axis or AXES[0]
        form = asdict(VolumeForm(axis=axis))
        facts = FilmFacts(films.new_id(), caller, name, (width, height), axis=axis, form=form, grows=True)
        return films.add(facts, model, folder)


async def _decoded(films: Films, folder: VideoFolder, caller: str, document: dict[str, Any]) -> dict[str, Any]:
    """What the process says that reads the file; what it writes counts while it writes."""

    def count() -> None:
        for name in (FRAMES_FILE, INDEX_FILE):
            with contextlib.suppress(FileNotFoundError):
                folder.count(name, (folder.path / name).stat().st_size)

    async with films.decoders.of(caller):
        found = await run_child("decode", document, films.limits, count)
    count()
    return found


@contextlib.contextmanager
def _folder(films: Films, caller: str) -> Iterator[VideoFolder]:
    folder = films.new_folder(caller)
    try:
        yield folder
    except BaseException:
        folder.remove()
        raise


def _check_kind(path: Path, name: str) -> None:
    """UnsupportedMedia for a file that is no video by its beginning."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if file_kind(head) is None:
        raise UnsupportedMedia(
            f"{name} is not a video that is read here: send MP4, Matroska, WebM, AVI, MPEG-TS, a TIFF stack, GIF or "
            "animated WebP"
        )


def checked_axis(axis: str | None) -> str | None:
    """``t`` or ``z``; None if that is for the file to say."""
    if axis is not None and axis not in AXES:
        raise InvalidInput(f"axis is t (a video) or z (a stack of slices), not {axis[:60]!r}")
    return axis


def _stack_choice(fields: Mapping[str, str]) -> dict[str, Any]:
    """Fields about stacks, as :func:`~triton_sam.video.opening.open_clip` takes them."""
    at, contrast, axes = (fields.get(name) or None for name in ("at", "contrast", "axes"))
    choice: dict[str, Any] = {"axis": checked_axis(fields.get("axis") or None)}
    if at is not None:
        found = _AT.fullmatch(at.replace(" ", ""))
        if found is None:
            raise InvalidInput(f"at holds dimensions of a stack at indices, as in t=0,c=1, not {at[:60]!r}")
        choice["at"] = {name: int(index) for name, index in _PLACE.findall(found[0])}
    if contrast is not None:
        try:
            choice["contrast"] = tuple(float(value) for value in contrast.split(","))
        except ValueError:
            raise InvalidInput(
                f"contrast is the values of black and white, as in 100,4000, not {contrast[:60]!r}"
            ) from None
    if axes is not None:
        choice["axes"] = axes
    StackChoice.of(**choice)
    return choice


def _side(document: dict[str, Any], field: str) -> int:
    value = document.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_SIDE:
        raise InvalidInput(f"{field} of the frames must be a whole number of pixels, from 1 to {_MAX_SIDE:,}")
    return value


async def put_frame(films: Films, film: Film, number: int, request: Request) -> int:
    """Adds the image in the request's body as the next frame; returns how many there are."""
    data = await short_body(request, films.limits.frame_bytes)
    where = f"frame {number}"

    def check() -> None:
        limits = ClipLimits(films.limits.frame_pixels, films.limits.frame_bytes)
        size = upright_size(data, limits, where)
        if size != film.facts.size:
            width, height = film.facts.size
            raise InvalidInput(
                f"{where} has {size[0]} x {size[1]} pixels and the video {width} x {height}: send frames of that size"
            )

    await asyncio.to_thread(check)
    frames = await film.add_frame(number, data)
    films.measure()
    return frames


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of work that is cancelled if the client disconnects; the request's body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnect(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def disconnect(request: Request) -> None:
    """Returns when the client disconnects; the request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
