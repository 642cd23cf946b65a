"""Entries of lists in a JSON file that may be larger than the memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ijson
from ijson.common import JSONError
from ijson.utils import sendable_list

from triton_sam.batch.inputs.faults import fault_of_file
from triton_sam.errors import InvalidInput

_CHUNK = 2**18
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: yajl where there is a wheel with it, else pure Python; tests try both.
_parser: Any = ijson


def entries(path: Path, *keys: str) -> Iterator[tuple[str, Any]]:
    """(key, entry) of the lists ``{"key": [entry, ...]}``, in the order of the file; it is read once.

    Raises:
        InvalidInput: it cannot be read, or is not JSON; says where.
    """
    found = {key: sendable_list() for key in keys}
    parsers = [_parser.items_coro(target, f"{key}.item", use_float=True) for key, target in found.items()]
    done = 0
    try:
        for chunk in _chunks(path):
            _send(path, parsers, chunk, done)
            done += len(chunk)
            for key, target in found.items():
                for entry in target:
                    yield key, entry
                target.clear()
        _send(path, parsers, None, done)
    finally:
        for parser in parsers:
            with contextlib.suppress(JSONError):  # whoever asked has seen enough
                parser.close()


def first_character(path: Path) -> str:
    """The first that is no space; empty if there is none in the first bytes."""
    return next(_chunks(path), b"").decode("utf-8", "replace").lstrip()[:1]


def has_key(path: Path, key: str) -> bool:
    """Whether the object of the file has this key. Slow for large files; meant for error messages."""
    return any(("", "map_key", key) in events for events in _events(path))


def _events(path: Path) -> Iterator[list[Any]]:
    found = sendable_list()
    parser = _parser.parse_coro(found, use_float=True)
    try:
        for chunk in _chunks(path):
            parser.send(chunk)
            yield found
            found.clear()
    finally:
        with contextlib.suppress(JSONError):
            parser.close()


def _send(path: Path, parsers: list[Any], chunk: bytes | None, before: int) -> None:
    """Gives the next chunk to all parsers; None: the file has ended."""
    try:
        for parser in parsers:
            if chunk is None:
                parser.close()
            else:
                parser.send(chunk)
    except JSONError as error:
        if chunk is None:
            raise InvalidInput(f"{path} is not JSON: it ends too early, after {before:,} bytes") from None
        raise InvalidInput(f"{path} is not JSON: {_place(path, before)}: {_reason(error)}") from None


def _place(path: Path, before: int) -> str:
    """Where the error is: the file is parsed again, and the chunk with the error byte by byte."""
    parser = _parser.basic_parse_coro(_Nowhere(), use_float=True)
    done, line, line_start = 0, 1, 0
    try:
        for chunk in _chunks(path):
            for part in [chunk] if done < before else [chunk[at : at + 1] for at in range(len(chunk))]:
                parser.send(part)
                breaks = part.count(b"\n")
                if breaks:
                    line += breaks
                    line_start = done + part.rindex(b"\n") + 1
                done += len(part)
    except JSONError:
        pass
    finally:
        with contextlib.suppress(JSONError):
            parser.close()
    return f"line {line}, byte {done - line_start + 1}"


def _reason(error: JSONError) -> str:
    """The parser's first line, without its drawing."""
    lines = str(error).replace("\\n", "\n").strip("b'\" ").splitlines()
    return lines[0].strip(" .")[:100] if lines else "it is damaged"


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            chunk = file.read(_CHUNK).removeprefix(_BYTE_ORDER_MARK)
            while chunk:
                yield chunk
                chunk = file.read(_CHUNK)
    except OSError as error:
        raise fault_of_file(error, path) from None


class _Nowhere:
    """Takes events and forgets them."""

    def send(self, event: object) -> None:
        pass
