"""Exports of a video: a process writes the file, which is sent and gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from triton_sam.errors import Conflict, InvalidInput
from triton_sam.service.videos.children import run_child
from triton_sam.service.videos.film import Film
from triton_sam.service.videos.films import Films

#: By format: the suffix of the file, the suffix that is written, and the media type.
FORMS = {
    "mp4": (".mp4", ".mp4", "video/mp4"),
    "png": (".zip", ".zip", "application/zip"),
    "coco": (".coco.json", ".json", "application/json"),
    "youtube_vis": (".youtube_vis.json", ".json", "application/json"),
    "tiff": (".labels.tif", ".tif", "image/tiff"),
}
_CHUNK = 256 * 1024
_RESULTS = "results"


def checked_form(form: str | None) -> str:
    """A format of :data:`FORMS`."""
    if form not in FORMS:
        told = "is missing" if form is None else f"cannot be {form[:60]!r}"
        raise InvalidInput(f"format {told}: add ?format= with one of {', '.join(FORMS)}")
    return form


async def written(films: Films, film: Film, form: str) -> OpenFile:
    """The export, which is no longer in the folder but open."""
    if not film.results.is_tracked:
        raise Conflict("nothing was tracked in this video: prompt an object and propagate it first")
    if film.is_exporting:
        raise Conflict("the video is being exported already: wait for that file")
    film.is_exporting = True
    folder, name = film.folder, f"export-{uuid.uuid4().hex}"
    work = folder.path / name
    target = work / f"export{FORMS[form][1]}"

    def count() -> None:
        film.check_open()
        folder.count(name, _size_of(work))

    try:
        with film.disk():
            await asyncio.to_thread(_prepare, film, work)
        request: dict[str, Any] = {
            "folder": str(folder.path),
            "name": film.facts.name,
            "target": f"{name}/{target.name}",
            "results": f"{name}/{_RESULTS}",
            "form": form,
            "size": film.facts.size,
            "fps": film.facts.fps,
            "objects": film.objects,
            "volume": film.facts.form,
        }
        async with films.exporters.of(film.facts.caller):
            await run_child("export", request, films.limits, count)
        with film.disk():
            film.check_open()
            file = target.open("rb")
    except BaseException:
        folder.count(name, 0)
        raise
    finally:
        film.is_exporting = False
        # What is open stays readable, and nothing is left behind whatever happens.
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, work, ignore_errors=True))
    size = os.fstat(file.fileno()).st_size
    folder.count(name, size)
    return OpenFile(file, size, _file_name(film, form), FORMS[form][2], lambda: folder.count(name, 0))


def _prepare(film: Film, work: Path) -> None:
    work.mkdir()
    film.store.write_index()
    film.results.copy_to(work / _RESULTS)


def _size_of(folder: Path) -> int:
    """Bytes of the files, some of which may go meanwhile."""
    size = 0
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    return size


def _file_name(film: Film, form: str) -> str:
    return f"{film.facts.name.rpartition('.')[0] or film.facts.name}{FORMS[form][0]}"


class OpenFile(Response):
    """A response with an open file, which is closed at its end."""

    # Many parameters: what is sent, and what follows.
    def __init__(self, file: IO[bytes], size: int, name: str, media_type: str, when_sent: Callable[[], None]) -> None:
        self._file, self._when_sent = file, when_sent
        self.status_code = 200
        self.background = None
        plain = "".join(letter if letter.isascii() and letter not in '"\\' else "_" for letter in name)
        self.init_headers(
            {
                "Content-Type": media_type,
                "Content-Length": str(size),
                "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name)}",
            }
        )

    def discard(self) -> None:
        """Closes the file, also where it was never sent."""
        if not self._file.closed:
            self._file.close()
            self._when_sent()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while part := await asyncio.to_thread(self._file.read, _CHUNK):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.discard()
