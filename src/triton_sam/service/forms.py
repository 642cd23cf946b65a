"""The fields of a form, checked one by one; InvalidInput names the field and the mend."""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import Message, Receive

from triton_sam.errors import InvalidInput, TooLarge, Unavailable

log = logging.getLogger(__name__)

LONGEST_NAME = 200
_MAX_FILES, _MAX_FIELDS = 4, 32
#: Of a text field; a file's part has no such limit.
_MAX_PART_BYTES = 4096
_MAX_TEXT_BYTES = _MAX_FIELDS * _MAX_PART_BYTES
#: Python has others whose decoders take minutes for a megabyte, and the framework takes whichever it is told.
_ALPHABETS = frozenset({b"utf-8", b"utf8", b"us-ascii", b"ascii"})
_YES, _NO = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off", ""})
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")


class Form:
    """A form that was read."""

    def __init__(self, data: FormData) -> None:
        """InvalidInput where a field is there twice: a proxy in front may have looked at the other one."""
        counts = Counter(name for name, _ in data.multi_items())
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            raise InvalidInput(f"the field {twice[:60]!r} is there twice: send each field once")
        self._data = data

    def name(self, field: str) -> str | None:
        """A short text such as a session's or a model's name; None where it is left out or empty."""
        value = self._data.get(field)
        if isinstance(value, UploadFile):
            raise InvalidInput(f"{field} is a text field, not a file")
        return checked_name(value, field)

    def flag(self, field: str) -> bool:
        """True or false; false where it is left out."""
        value = (self.name(field) or "").lower()
        if value not in _YES | _NO:
            raise InvalidInput(f"{field} is true or false, not {value[:60]!r}")
        return value in _YES

    def number(self, field: str) -> int:
        """A whole number, which must be there."""
        value = self.name(field)
        if value is None:
            raise InvalidInput(f"the form has no {field}: add it, a whole number of pixels")
        if not _WHOLE_NUMBER.fullmatch(value.strip()):
            raise InvalidInput(f"{field} is a whole number of pixels, not {value[:60]!r}")
        return int(value)

    async def optional_file(self, field: str) -> bytes | None:
        """A file's bytes; None where it is left out, as a browser does it too (no name, no bytes)."""
        value = self._data.get(field)
        if isinstance(value, str):
            raise InvalidInput(f"{field} is a file, not a text field: send it as multipart/form-data with a file name")
        if value is None or (not value.filename and not value.size):
            return None
        return await value.read()

    async def file(self, field: str) -> bytes:
        """A file's bytes, which must be there."""
        data = await self.optional_file(field)
        if data is None:
            raise InvalidInput(f"the form has no file {field}: send multipart/form-data with one")
        return data


@contextlib.asynccontextmanager
async def read_form(request: Request) -> AsyncIterator[Form]:
    """The form of a request; its files are open while the block is."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if options.get(b"charset", b"utf-8").lower() not in _ALPHABETS:
        raise InvalidInput("the form's charset is not supported: send it as utf-8, or leave charset out")
    if kind == b"application/x-www-form-urlencoded":
        request = Request(request.scope, _bounded(request.receive))
    try:
        data = await (
            _Parts(request).parse() if kind == b"multipart/form-data" else request.form(max_fields=_MAX_FIELDS)
        )
    except (HTTPException, MultiPartException, ValueError) as error:  # the parser has words of its own
        reason = error.detail if isinstance(error, HTTPException) else error
        raise InvalidInput(f"the form cannot be read ({reason}): send multipart/form-data") from None
    except OSError as error:  # large files go through the machine's folder for such things
        log.error("an upload cannot be kept: %s", error)
        raise Unavailable("there is no room for uploads now: try again in a moment") from None
    try:
        yield Form(data)
    finally:
        await data.close()


class _Parts(MultiPartParser):
    """A multipart form that must end as it says; the usual parser takes what a broken connection left for the whole."""

    def __init__(self, request: Request) -> None:
        super().__init__(
            request.headers,
            request.stream(),
            max_files=_MAX_FILES,
            max_fields=_MAX_FIELDS,
            max_part_size=_MAX_PART_BYTES,
        )
        self._ended = False

    def on_end(self) -> None:
        self._ended = True

    async def parse(self) -> FormData:
        data = await super().parse()
        if not self._ended:
            for file in self._files_to_close_on_error:
                file.close()
            raise MultiPartException("it is cut short, its last boundary is missing")
        return data


def _bounded(receive: Receive) -> Receive:
    """For a form without files, whose parser works through megabytes of separators on the event loop."""
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > _MAX_TEXT_BYTES:
            raise TooLarge(f"the form has more than {_MAX_TEXT_BYTES:,} bytes: send files as multipart/form-data")
        return message

    return bounded


def checked_name(value: object, field: str) -> str | None:
    """A name as a user gave it; None for nothing."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidInput(f"{field} is a string, not {type(value).__name__}")
    if len(value) > LONGEST_NAME or not value.isprintable():
        raise InvalidInput(f"{field} has at most {LONGEST_NAME} characters, all of them printable")
    return value
