"""Uploads of videos that are refused, and what is left of them: nothing. More are in the part ``video``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.hostile_videos import HARMLESS, LIMITS, UPLOADS, plain, slow
from tests.unit.service.helpers import refusal
from tests.unit.service.video_helpers import video_client, video_service
from tests.waiting import eventually
from triton_sam.errors import InvalidInput
from triton_sam.service.videos import children, uploads
from triton_sam.service.videos.limits import VideoLimits
from triton_sam.settings import Settings

CODES = {400: "invalid_input", 404: "not_found", 413: "too_large", 415: "unsupported_media"}


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The temporary folder of the service of these tests."""
    folder = tmp_path_factory.mktemp("spool")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield folder
    tempfile.tempdir = None


@pytest.fixture(scope="module")
def service(spool: Path) -> Iterator[httpx.Client]:
    with video_service(**LIMITS) as client:
        yield client


def left(spool: Path) -> list[Path]:
    return [path for path in spool.glob("triton-sam-videos-*/*") if path.name != "alive"]


@pytest.mark.parametrize("which", [name for name, upload in UPLOADS.items() if upload.is_short])
def test_a_hostile_upload(service: httpx.Client, spool: Path, tmp_path: Path, which: str) -> None:
    upload = UPLOADS[which]
    data = upload.make(tmp_path)
    answer = service.post("/v1/videos", files={"file": (upload.name, data)}, data=upload.fields)
    message = refusal(answer, upload.status, CODES[upload.status])
    assert upload.told in message
    assert str(spool) not in message
    assert left(spool) == []


def test_a_file_that_only_looks_hostile(service: httpx.Client, spool: Path, tmp_path: Path) -> None:
    answer = service.post("/v1/videos", files={"file": ("a.gif", HARMLESS["a GIF that loops"](tmp_path))})
    assert answer.json()["frames"] == 8, answer.text
    assert len(left(spool)) == 1
    assert service.delete(f"/v1/videos/{answer.json()['id']}").status_code == 204
    assert left(spool) == []


BOUNDARY = b"x" * 30


def part(head: bytes, body: bytes) -> bytes:
    return b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + body + b"\r\n"


END = b"--" + BOUNDARY + b"--\r\n"
FORMS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "cut short"),
    "no file": (part(b'name="model"', b"sam2") + END, "the form has no file"),
    "no fields": (END, "the form has no file"),
    "two files": (2 * part(b'name="file"; filename="a"', b"0") + END, "the form has two files"),
    "a file as a text": (part(b'name="file"', b"0") + END, "file must be a file"),
    "a text as a file": (part(b'name="axis"; filename="a"', b"t") + END, "axis must be a text field"),
    "a field twice": (2 * part(b'name="axis"', b"t") + END, "appears twice"),
    "a long field": (part(b'name="model"', b"s" * 9000) + END, "at most 4,096 bytes"),
    "a control character": (part(b'name="model"', b"s\x1b[31m") + END, "printable"),
    "a long head": (part(b'name="model"; x="' + b"y" * 9000 + b'"', b"s") + END, "header"),
    "no name": (part(b"filename=a", b"0") + END, "unknown field ''"),
    "no end": (part(b'name="file"; filename="a"', b"0"), "cut short"),
    "another boundary": (b"--yyy\r\n\r\n0", "the form cannot be read"),
}


@pytest.mark.parametrize("which", FORMS)
def test_a_form(service: httpx.Client, which: str) -> None:
    body, message = FORMS[which]
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    assert message in refusal(service.post("/v1/videos", content=body, headers=kind), 400, "invalid_input")


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "multipart/mixed; boundary=x", ""])
def test_something_else_than_a_form(service: httpx.Client, kind: str) -> None:
    answer = service.post("/v1/videos", content=b"0", headers={"Content-Type": kind})
    assert "multipart/form-data" in refusal(answer, 415, "unsupported_media")


@pytest.mark.parametrize(
    ("field", "value", "status", "message"),
    [
        ("model", "sam9", 404, "there is no model"),
        ("axis", "q", 400, "axis is t"),
        ("at", "here", 400, "at holds dimensions"),
        ("contrast", "much", 400, "contrast is"),
    ],
)
def test_a_field_that_is_wrong_is_told_before_the_file(
    service: httpx.Client, field: str, value: str, status: int, message: str
) -> None:
    sent = part(f'name="{field}"'.encode(), value.encode())
    sent += b"--" + BOUNDARY + b'\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n0'
    head = (
        f"POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary={BOUNDARY.decode()}\r\n"
        "Content-Length: 10000000\r\n\r\n"
    )
    with socket.create_connection((service.base_url.host, service.base_url.port or 0), timeout=20) as connection:
        connection.sendall(head.encode() + sent)
        answer = connection.recv(4000)
        assert f" {status} ".encode() in answer
        while message.encode() not in answer:
            answer += connection.recv(4000) or pytest.fail(answer.decode())


@contextlib.contextmanager
def begun(service: httpx.Client) -> Iterator[socket.socket]:
    """An upload whose file has begun."""
    head = (
        f"POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary={BOUNDARY.decode()}\r\n"
        "Content-Length: 10000000\r\n\r\n"
    )
    with socket.create_connection((service.base_url.host, service.base_url.port or 0), timeout=20) as connection:
        connection.sendall(head.encode() + part(b'name="file"; filename="a"', b"0")[:-2])
        yield connection


def test_an_upload_that_trickles(service: httpx.Client, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and all of them never would."""
    with begun(service) as connection:
        eventually(lambda: left(spool), "the upload has begun")
        monkeypatch.setattr(uploads, "_GRACE_SECONDS", -100.0)
        connection.sendall(b"0")
        assert b" 408 " in connection.recv(4000)
    eventually(lambda: left(spool) == [], "its files are gone")


def test_uploads_are_videos_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with video_service(video_open_per_caller=1) as service:
        with begun(service):
            eventually(lambda: left(tmp_path), "the upload has begun")
            answer = service.post("/v1/videos", json={"width": 8, "height": 8})
            assert "you have 1 videos here" in refusal(answer, 429, "queue_full")
        eventually(lambda: left(tmp_path) == [], "its files are gone")
        made = service.post("/v1/videos", files={"file": ("a.mp4", plain(tmp_path))})
        assert made.status_code == 201, made.text
        assert service.post("/v1/videos", json={"width": 8, "height": 8}).status_code == 429
        service.delete(f"/v1/videos/{made.json()['id']}")
        assert service.post("/v1/videos", json={"width": 8, "height": 8}).status_code == 201


def test_a_name_that_climbs(service: httpx.Client) -> None:
    head = b'name="file"; filename="../../etc/\x1b[31mpass\x07wd\xff.mp4"'
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    answer = service.post("/v1/videos", content=part(head, b"no") + END, headers=kind)
    assert refusal(answer, 415, "unsupported_media").startswith("_[31mpass_wd\ufffd.mp4 is not a video")


@pytest.mark.parametrize(("told_length", "sent"), [(5_000_000, 1000), (100, 100)], ids=["shorter", "in the middle"])
def test_a_lying_length(service: httpx.Client, spool: Path, told_length: int, sent: int) -> None:
    """A client that sends less than it says, and goes: nothing of it stays."""
    body = part(b'name="file"; filename="a.mp4"', bytes(10_000))[:sent]
    head = (
        f"POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary={BOUNDARY.decode()}\r\n"
        f"Content-Length: {told_length}\r\n\r\n"
    )
    with socket.create_connection((service.base_url.host, service.base_url.port or 0)) as connection:
        connection.sendall(head.encode() + body)
        if told_length > sent:
            eventually(lambda: left(spool), "the upload has begun")
        else:
            assert b" 400 " in connection.recv(1000)
    eventually(lambda: left(spool) == [], "its files are gone")


def processes() -> list[str]:
    """Commands of this process's children that read videos."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_bytes().decode()
        except (OSError, ValueError):
            continue
        if parent == os.getpid() and "videos.child_process" in command:
            found.append(command)
    return found


def test_a_client_that_hangs_up_while_its_video_is_read(service: httpx.Client, spool: Path, tmp_path: Path) -> None:
    data = part(b'name="file"; filename="a.avi"', slow(tmp_path)) + END
    head = (
        f"POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary={BOUNDARY.decode()}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((service.base_url.host, service.base_url.port or 0)) as connection:
        connection.sendall(head.encode() + data)
        eventually(processes, "it is being read")
    eventually(lambda: not processes(), "the process has ended")
    eventually(lambda: left(spool) == [], "its files are gone")


@pytest.mark.parametrize(
    ("settings", "status", "message"),
    [
        ({"video_decode_seconds": 1.0}, 413, "takes longer than 1 s"),
        ({"video_decode_bytes": 300 * 2**20}, 400, "memory"),
    ],
    ids=["time", "memory"],
)
def test_limits_of_the_process_that_reads(tmp_path: Path, settings: Any, status: int, message: str) -> None:
    async def run() -> httpx.Response:
        async with video_client(**settings) as client:
            return await client.post("/v1/videos", files={"file": ("a.avi", slow(tmp_path))})

    answer = asyncio.run(run())
    assert answer.status_code in (status, 413), answer.text
    assert message in answer.json()["error"]["message"]
    assert processes() == []


@pytest.mark.parametrize("answer", [b"{}", b"no JSON"], ids=["an answer", "another text"])
def test_a_process_that_does_not_end(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """It closes its output, and stays: videos.child_process."""
    code = f"import os, signal; os.write(1, {answer!r}); os.close(1); signal.pause()  # videos.child_process"
    monkeypatch.setattr(children, "_CODE", code)
    monkeypatch.setattr(children, "_EXIT_SECONDS", 0.05)

    async def run() -> dict[str, Any]:
        return await asyncio.wait_for(children.run_child("decode", {}, VideoLimits.of(Settings())), 30)

    if answer == b"{}":
        assert asyncio.run(run()) == {}
    else:
        with pytest.raises(InvalidInput, match="cannot be read"):
            asyncio.run(run())
    assert processes() == []


def test_a_killed_service_leaves_nothing_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start removes what a killed one has left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = tmp_path / "triton-sam-videos-killed"
    old.mkdir()
    (old / "alive").touch()
    (old / "film").mkdir()

    async def run() -> None:
        async with video_client() as client:
            assert not old.exists()
            made = await client.post("/v1/videos", files={"file": ("a.mp4", plain(tmp_path))})
            assert made.status_code == 201
            (folder,) = tmp_path.glob("triton-sam-videos-*")
            assert folder.stat().st_mode & 0o77 == 0, "others cannot look into it"
            assert len(list(folder.glob("*/frames"))) == 1

    asyncio.run(run())
    assert list(tmp_path.glob("triton-sam-videos-*")) == []
