"""Multipart forms as bytes, with a fixed boundary."""

from __future__ import annotations

BOUNDARY = "frontier"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


def part(name: str, value: bytes, file_name: str | None = None) -> bytes:
    """One field of a multipart form; with a file's name it is a file."""
    file = "" if file_name is None else f'; filename="{file_name}"'
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    """A whole multipart body."""
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
