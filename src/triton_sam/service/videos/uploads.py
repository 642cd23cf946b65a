"""Receives a video in a form, part by part into a file: it is never in memory as a whole."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from triton_sam.errors import InvalidInput, RequestTimeout, TooLarge, UnsupportedMedia
from triton_sam.service.forms import checked_name
from triton_sam.service.videos.absent import no_space

UPLOAD_FILE = "upload"
_FILE, _FIELDS = "file", ("model", "axis", "at", "contrast", "axes")
_MAX_FIELD_BYTES, _MAX_HEADER_BYTES = 4096, 8192
_MAX_NAME = 100
#: Bytes a second on average after the first seconds: an upload keeps one of few slots.
_SLOWEST, _GRACE_SECONDS = 64 * 1024, 60.0


@dataclass(frozen=True, slots=True)
class Upload:
    """A form that has arrived.

    Attributes:
        name: of the file, to be shown.
        fields: the others.
    """

    name: str
    fields: dict[str, str]


async def receive_upload(
    request: Request,
    folder: Path,
    most: int,
    count: Callable[[int], None],
    check: Callable[[Mapping[str, str]], Awaitable[object]],
) -> Upload:
    """Writes the form's file into the folder as :data:`UPLOAD_FILE`.

    Args:
        most: bytes of the file.
        count: called with its bytes so far; what it raises ends the upload.
        check: called with the fields before the file when that begins, and with all of them at the end.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise UnsupportedMedia(
            'send a video as the file of a multipart/form-data form, or {"width": ..., "height": ...} as JSON for an '
            "empty one"
        )
    form = _Form()
    try:
        parser = MultipartParser(boundary, form.callbacks())  # type: ignore[arg-type]
        with (folder / UPLOAD_FILE).open("xb") as file:
            size, is_checked = 0, False
            began = time.monotonic()
            async for chunk in _chunks(request):
                if time.monotonic() - began > _GRACE_SECONDS + size / _SLOWEST:
                    raise RequestTimeout(
                        f"the file arrives with less than {_SLOWEST:,} bytes a second: send it over a faster connection"
                    )
                parser.write(chunk)
                if form.has_file and not is_checked:
                    is_checked = True
                    await check(form.fields)
                data = b"".join(form.take())
                if data:
                    size += len(data)
                    if size > most:
                        raise TooLarge(f"the file has more than {most:,} bytes: cut it, or scale it down")
                    count(size)
                    await run_in_threadpool(file.write, data)
            parser.finalize()
    except FormParserError as error:
        raise InvalidInput(f"the form cannot be read ({error}): send multipart/form-data") from None
    except OSError:
        raise no_space() from None
    upload = form.finished(size)
    await check(upload.fields)
    return upload


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        if chunk:
            yield chunk


class _Form:
    """What the parser of a form has found."""

    def __init__(self) -> None:
        self._header, self._value = b"", b""
        self._disposition = b""
        self._part = ""
        self._text = b""
        self._data: list[bytes] = []
        self._name: str | None = None
        self._fields: dict[str, str] = {}
        self._is_complete = False

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._on_header,
            "on_header_value": self._on_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._on_data,
            "on_part_end": self._end,
            "on_end": self._complete,
        }

    def take(self) -> list[bytes]:
        """The file's bytes since the last call."""
        data, self._data = self._data, []
        return data

    @property
    def has_file(self) -> bool:
        """Whether its file has begun."""
        return self._name is not None

    @property
    def fields(self) -> dict[str, str]:
        """Those that are complete."""
        return dict(self._fields)

    def finished(self, size: int) -> Upload:
        """The form; InvalidInput if it is not complete."""
        if not self._is_complete:
            raise InvalidInput("the form is cut short, its closing boundary is missing: send it again")
        if self._name is None:
            raise InvalidInput("the form has no file: send a video in its field `file`")
        if not size:
            raise InvalidInput("the file is empty: send a video")
        return Upload(self._name, self._fields)

    def _begin(self) -> None:
        self._disposition, self._part, self._text = b"", "", b""
        self._header, self._value = b"", b""

    def _on_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._check_header()

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check_header()

    def _check_header(self) -> None:
        if len(self._header) + len(self._value) > _MAX_HEADER_BYTES:
            raise InvalidInput(f"a part of the form has a header of more than {_MAX_HEADER_BYTES:,} bytes: send less")

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header, self._value = b"", b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._part = options.get(b"name", b"").decode("utf-8", "replace")
        shown = repr(self._part[:60])
        if self._part == _FILE:
            if b"filename" not in options:
                raise InvalidInput("file must be a file, not a text field: send it with a file name")
            if self._name is not None:
                raise InvalidInput("the form has two files: send one video at a time")
            self._name = shown_name(options[b"filename"].decode("utf-8", "replace"))
        elif self._part not in _FIELDS:
            raise InvalidInput(f"the form has the unknown field {shown}: it takes file, {', '.join(_FIELDS)}")
        elif b"filename" in options:
            raise InvalidInput(f"{self._part} must be a text field, not a file")
        elif self._part in self._fields:
            raise InvalidInput(f"the field {shown} appears twice: send each field once")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._part == _FILE:
            self._data.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _MAX_FIELD_BYTES:
            raise InvalidInput(f"{self._part} must have at most {_MAX_FIELD_BYTES:,} bytes")

    def _end(self) -> None:
        if self._part != _FILE:
            value = checked_name(self._text.decode("utf-8", "replace"), self._part)
            self._fields[self._part] = value or ""

    def _complete(self) -> None:
        self._is_complete = True


def shown_name(name: str) -> str:
    """A file's name as it may be shown and sent in headers: without folders and control characters."""
    last = name.replace("\\", "/").rpartition("/")[2]
    clean = "".join(character if character.isprintable() else "_" for character in last).strip(" .")
    return clean[:_MAX_NAME] or "video"
