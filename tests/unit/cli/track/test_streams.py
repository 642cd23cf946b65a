"""`triton-sam track` on pipes and streams, also without an end."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.unit.cli.helpers import Run, assert_one_sentence
from tests.unit.client.video_server import FakeVideoServer
from tests.video_clips import COUNT, HEIGHT, WIDTH, picture, write_jpegs
from triton_sam.video import live

pytestmark = pytest.mark.usefixtures("interruptible")


def mkv(count: int) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska", options={"live": "1"}) as file:
        stream: Any = file.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
        for index in range(count):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture(index), "rgb24")))
        file.mux(stream.encode())
    return buffer.getvalue()


def test_a_pipe(server: FakeVideoServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as end:
        end.write(mkv(COUNT))
    with os.fdopen(reading, "rb") as source:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=source))
        ended = run(
            "-", "--point", "2,8,4", "--box", "5,0,0,20,20,2", "--out", "o.mp4", "--out", "m/", "--out", "c.json"
        )
    assert (ended.code, ended.err) == (0, "")
    assert "2 objects in 8 frames" in ended.out
    assert [video["frame"] for video in server.done("track")] == list(range(2, COUNT))
    shown = [np.unique(np.asarray(Image.open(path))).tolist() for path in sorted(Path("m").iterdir())]
    assert shown == [[0]] * 2 + [[0, 1]] * 3 + [[0, 1, 2]] * 3
    for entry, absent in zip(json.loads(Path("c.json").read_text())["annotations"], (2, 5), strict=True):
        for key in ("segmentations", "bboxes", "areas"):
            assert [value is None for value in entry[key]] == [True] * absent + [False] * (COUNT - absent)
    with av.open("o.mp4") as overlay:
        assert sum(1 for _ in overlay.decode(video=0)) == COUNT


def test_an_overlay_of_a_stream_of_large_frames(
    server: FakeVideoServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "KEPT_BYTES", 1)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(mkv(60))))
    ended = run("-", "--point", "0,4,4", "--out", "o.mp4")
    assert (ended.code, ended.out) == (0, "1 object in 60 frames: o.mp4\n")


class Endless:
    """Standard input that never ends: behind its frames Ctrl-C is pressed, and reading waits."""

    def __init__(self, frames: int) -> None:
        self.data = mkv(frames)
        self.place = 0
        self.closed = threading.Event()

    def read(self, size: int) -> bytes:
        part = self.data[self.place : self.place + min(size, 500)]
        self.place += len(part)
        if not part and not self.closed.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert self.closed.wait(60)
        return part


def test_ctrl_c_ends_an_endless_stream_cleanly(
    server: FakeVideoServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera = Endless(40)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=camera))
    ended = run("-", "--point", "0,4,4", "--out", "o.mp4", "--out", "c.json")
    camera.closed.set()
    assert ended.code == 0, ended.err
    frames = json.loads(Path("c.json").read_text())["videos"][0]["length"]
    assert 30 < frames <= 40
    with av.open("o.mp4") as overlay:
        assert sum(1 for _ in overlay.decode(video=0)) == frames


def test_what_comes_before_an_error_of_a_stream_is_written(
    server: FakeVideoServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jpegs(Path("v.avi"), [(WIDTH, HEIGHT)] * 5 + [(32, 24)])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
    ended = run("-", "--point", "0,4,4", "--out", "o.mp4", "--out", "m/", "--out", "c.json")
    assert_one_sentence(ended, "frame 5 has 32 x 24 pixels", "; what was tracked before it is written, ")
    written = len(list(Path("m").iterdir()))
    assert 1 <= written <= 5  # those that are under way are not waited for
    assert f"is written, {written} frame" in ended.err
    assert json.loads(Path("c.json").read_text())["videos"][0]["length"] == written
    with av.open("o.mp4") as overlay:
        assert sum(1 for _ in overlay.decode(video=0)) == written


def test_ctrl_c_before_a_stream_begins(server: FakeVideoServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Endless(0)))
    ended = run("-", "--point", "0,4,4", "--out", "o.mp4", "--out", "c.json")
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert {path.name for path in Path().iterdir()} <= {"home"}


def test_a_named_pipe(server: FakeVideoServer, run: Run) -> None:
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(mkv(COUNT)))
    writer.start()
    ended = run("pipe", "--point", "0,4,4", "--out", "c.json")
    writer.join()
    assert (ended.code, ended.out) == (0, f"1 object in {COUNT} frames: c.json\n")


@pytest.mark.parametrize(
    ("data", "words", "told"),
    [
        (b"", (), "the stream on standard input is not a video that can be read"),
        (b"text\n" * 999, (), "the stream on standard input is not a video that can be read"),
        (mkv(3), ("--both",), "a stream cannot be tracked backward"),
        (mkv(3), ("--point", "99,1,1"), "there is no frame 99 in the stream on standard input"),
    ],
)
def test_wrong_streams(
    data: bytes, words: tuple[str, ...], told: str, server: FakeVideoServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert_one_sentence(run("-", "--point", "0,4,4", *words), told)
