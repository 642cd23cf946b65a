"""Form fields and uploaded files, validated one by one; InvalidInput names the field and the fix."""

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

MAX_NAME = 200
_MAX_FILES, _MAX_FIELDS = 4, 32
#: Of a text field; files have no such limit.
_MAX_PART_BYTES = 4096
_MAX_TEXT_BYTES = _MAX_FIELDS * _MAX_PART_BYTES
_MULTIPART = b"multipart/form-data"
#: Some of Python's other decoders take minutes for a megabyte, and the framework uses any that the request names.
_CHARSETS = frozenset({b"utf-8", b"utf8", b"us-ascii", b"ascii"})
_YES, _NO = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off", ""})
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")


class Form:
    """A parsed form."""

    def __init__(self, data: FormData) -> None:
        """Raises InvalidInput if a field appears twice: a proxy may have checked the other one."""
        counts = Counter(name for name, _ in data.multi_items())
        duplicate = next((name for name, count in counts.items() if count > 1), None)
        if duplicate is not None:
            raise InvalidInput(f"the field {duplicate[:60]!r} appears twice: send each field once")
        self._data = data

    def name(self, field: str) -> str | None:
        """A short text such as the name of a session or a model; None if it is missing or empty."""
        value = self._data.get(field)
        if isinstance(value, UploadFile):
            raise InvalidInput(f"{field} must be a text field, not a file")
        return checked_name(value, field)

    def flag(self, field: str) -> bool:
        """True or false; false if it is missing."""
        value = (self.name(field) or "").lower()
        if value not in _YES | _NO:
            raise InvalidInput(f"{field} must be true or false, not {value[:60]!r}")
        return value in _YES

    def number(self, field: str) -> int:
        """A required whole number."""
        value = self.name(field)
        if value is None:
            raise InvalidInput(f"the form has no {field}: add it, a whole number of pixels")
        if not _WHOLE_NUMBER.fullmatch(value.strip()):
            raise InvalidInput(f"{field} must be a whole number of pixels, not {value[:60]!r}")
        return int(value)

    def texts(self) -> dict[str, str]:
        """All text fields that are not empty."""
        return {field: value for field, value in self._data.multi_items() if isinstance(value, str) and value}

    async def optional_file(self, field: str) -> bytes | None:
        """A file's bytes; None if it is missing. Browsers send a missing file without name and content."""
        value = self._data.get(field)
        if isinstance(value, str):
            raise InvalidInput(
                f"{field} must be a file, not a text field: send it as multipart/form-data with a file name"
            )
        if value is None or (not value.filename and not value.size):
            return None
        return await value.read()

    async def file(self, field: str) -> bytes:
        """The bytes of a required file."""
        data = await self.optional_file(field)
        if data is None:
            raise InvalidInput(f"the form has no file {field}: send multipart/form-data with one")
        return data


def is_form(request: Request) -> bool:
    """Whether the body is a form with files, and not JSON."""
    return parse_options_header(request.headers.get("content-type"))[0] == _MULTIPART


@contextlib.asynccontextmanager
async def read_form(request: Request) -> AsyncIterator[Form]:
    """The form of a request; its files are open inside the block."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if options.get(b"charset", b"utf-8").lower() not in _CHARSETS:
        raise InvalidInput("the form's charset is not supported: use utf-8, or leave charset out")
    if kind == b"application/x-www-form-urlencoded":
        request = Request(request.scope, _bounded(request.receive))
    try:
        data = await (
            _CompleteMultiPartParser(request).parse() if kind == _MULTIPART else request.form(max_fields=_MAX_FIELDS)
        )
    except (HTTPException, MultiPartException, ValueError) as error:  # the parser has exceptions of its own
        reason = error.detail if isinstance(error, HTTPException) else error
        raise InvalidInput(f"the form cannot be read ({reason}): send multipart/form-data") from None
    except OSError as error:  # large files are kept in the temporary folder
        log.error("an upload cannot be stored: %s", error)
        raise Unavailable("there is no disk space for uploads: try again in a moment") from None
    try:
        yield Form(data)
    finally:
        await data.close()


class _CompleteMultiPartParser(MultiPartParser):
    """Refuses a form without its closing boundary; the base class accepts one that a broken connection cut short."""

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
            raise MultiPartException("it is cut short: its closing boundary is missing")
        return data


def _bounded(receive: Receive) -> Receive:
    """Limits the size of a form without files: its parser would process megabytes of separators on the event loop."""
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
    """A name from a request, validated; None if it is missing or empty."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidInput(f"{field} must be a string, not {type(value).__name__}")
    if len(value) > MAX_NAME or not value.isprintable():
        raise InvalidInput(f"{field} must have at most {MAX_NAME} characters, all of them printable")
    return value
