"""`triton-sam track`: its options, outputs that other libraries read, stopped and killed runs, and streams."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as masks
from pycocotools.coco import COCO

from tests.unit.cli.helpers import Ended, assert_one_sentence, run_main
from tests.unit.client.video_server import FakeVideoServer, reached
from tests.video_clips import COUNT, HEIGHT, WIDTH, picture, red_square, write_folder, write_jpegs, write_video
from triton_sam.cli.track_folder import opened
from triton_sam.client import video_client
from triton_sam.video.label_frames import LabelFolder
from triton_sam.video.overlays import OverlayVideo
from triton_sam.video.results import ResultFile

Run = Callable[..., Ended]


def by_object(image: bytes, name: int, memory: int, size: tuple[int, int]) -> Any:
    """Object 1 is the red square, others are what is below it."""
    found = red_square(image, name, memory, size)
    return found if name == 1 else np.roll(found, HEIGHT // 2, axis=0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeVideoServer:
    found = FakeVideoServer(draw=by_object)
    monkeypatch.setattr(video_client, "video_servers", lambda *_, **__: reached(found))
    return found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *words: run_main("track", *words, monkeypatch=monkeypatch, capsys=capsys)


# outputs


def test_everything_that_is_written(server: FakeVideoServer, run: Run) -> None:
    write_video(Path("v.mp4"))
    outputs = [word for name in ("o.mkv", "masks/", "ytvis.json") for word in ("--out", name)]
    prompted = ("v.mp4", "--point", "0,4,4", "--point", "0,30,40,0", "--box", "2,0,20,20,40,300")
    ended = run(*prompted, *outputs)
    assert (ended.code, ended.out) == (0, f"2 objects in {COUNT} frames: o.mkv, masks, ytvis.json\n")
    prompts = server.done("prompt")
    assert [(prompt["frame"], prompt["object"]) for prompt in prompts] == [(0, 1), (2, 300)]
    assert prompts[0]["labels"] == [1, 0]
    assert prompts[1]["box"] == [0, 20, 20, 40]
    labels = [np.asarray(Image.open(path)) for path in sorted(Path("masks").iterdir())]
    assert [label.dtype for label in labels] == [np.dtype(np.int32)] * COUNT or labels[0].dtype == np.uint16
    assert {int(value) for label in labels for value in np.unique(label)} == {0, 1, 300}
    assert run(*prompted, "--out", "coco.json", "--json", "coco").code == 0
    document = COCO("coco.json")
    found = document.loadAnns(document.getAnnIds(imgIds=[3]))
    assert {entry["track_id"] for entry in found} == {1, 300}
    for entry in found:
        np.testing.assert_array_equal(document.annToMask(entry) > 0, labels[2] == entry["track_id"])
    youtube = json.loads(Path("ytvis.json").read_text())
    assert youtube["videos"][0]["length"] == COUNT
    assert [entry["object"] for entry in youtube["annotations"]] == [1, 300]
    assert [len(entry["segmentations"]) for entry in youtube["annotations"]] == [COUNT, COUNT]
    assert youtube["annotations"][0]["bboxes"][0] == [0, 0, 16, 16]
    for entry in youtube["annotations"]:
        for index, mask in enumerate(entry["segmentations"]):
            found = labels[index] == entry["object"]
            assert (mask is None) == (not found.any())
            if mask is not None:
                np.testing.assert_array_equal(masks.decode(mask) > 0, found)
                assert entry["areas"][index] == found.sum()
    with av.open("o.mkv") as overlay:
        first = next(overlay.decode(video=0)).to_ndarray(format="rgb24")
    assert first[40, 50].tolist() == pytest.approx([90] * 3, abs=12)
    assert first[8, 8, 0] > 180


def test_labels_are_named_as_the_frames_are(server: FakeVideoServer, run: Run) -> None:
    write_folder(Path("f"), ["b 2.png", "b 10.png"])
    assert run("f", "--point", "1,4,4", "--out", "masks").code == 0
    assert sorted(path.name for path in Path("masks").iterdir()) == ["b 10.png", "b 2.png"]
    first, second = (Image.open(Path("masks") / name) for name in ("b 2.png", "b 10.png"))
    assert (first.mode, np.asarray(first).max()) == ("P", 0)  # before the prompt
    assert np.asarray(second).max() == 1


def test_backward_and_both_ways(server: FakeVideoServer, run: Run) -> None:
    write_video(Path("v.mp4"))
    assert run("v.mp4", "--point", "4,20,4", "--reverse").code == 0
    assert [video["frame"] for video in server.done("track")] == [4, 3, 2, 1, 0]
    server.calls.clear()
    assert run("v.mp4", "--point", "4,20,4", "--both").code == 0
    assert [(video["frame"], video["reverse"]) for video in server.done("track")] == [
        *((frame, False) for frame in range(4, COUNT)),
        *((frame, True) for frame in range(3, -1, -1)),
    ]


def test_a_mask_as_the_prompt(server: FakeVideoServer, run: Run) -> None:
    write_video(Path("v.mp4"))
    Image.fromarray(np.full((HEIGHT, WIDTH), 7, np.uint8)).save("a,b.png")
    assert run("v.mp4", "--mask", "1,a,b.png,3").code == 0
    (prompt,) = server.done("prompt")
    assert (prompt["frame"], prompt["object"], prompt["mask"]["size"]) == (1, 3, [HEIGHT, WIDTH])


# wrong options


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "there is nothing to track: give a --point"),
        (["--point", "1,2"], "'1,2' is not a --point FRAME,X,Y[,LABEL][,OBJECT]"),
        (["--point", "0,1,2,3"], "a label is 1 (object) or 0 (background)"),
        (["--point", "0.5,1,2"], "frames and objects are whole numbers"),
        (["--point", "99,1,2"], "there is no frame 99 in v.mp4: it has 8 frames"),
        (["--box", "0,1,2,3"], "is not a --box FRAME,X0,Y0,X1,Y1[,OBJECT]"),
        (["--box", "0,1,2,3,4", "--box", "0,1,2,3,5"], "object 1 has two boxes in frame 0"),
        (["--mask", "x"], "'x' is not a --mask FRAME,FILE[,OBJECT]"),
        (["--mask", "0,none.png"], "the mask none.png cannot be read: No such file"),
        (["--mask", "0,small.png"], "the mask small.png has 4 x 4 pixels and the video 64 x 48"),
        (["--mask", "0,v.mp4"], "the image format is unknown"),
        (["--mask", "0,small.png", "--point", "0,1,1"], "object 1 has a mask and another prompt in frame 0"),
        (["--point", "0,1,1", "--out", "x.gif"], "x.gif is neither .mp4, .mov, .mkv nor .json"),
        (["--point", "0,1,1", "--out", "no/x.mp4"], "the folder of no/x.mp4 does not exist"),
        (["--point", "0,1,1", "--out", "v.mp4/"], "v.mp4 is a file"),
        (["--point", "0,1,1", "--out", "x.json", "--json", "xml"], "--json is youtube-vis or coco, not 'xml'"),
        (["--point", "0,1,1", "--both", "--reverse"], "--both is forward and backward"),
        (["--point", "0,1,1,1,0", "--out", "m/"], "object 0 has no place in label images"),
    ],
)
def test_wrong_options_are_told_before_anything_is_sent(
    words: list[str], told: str, server: FakeVideoServer, run: Run
) -> None:
    write_video(Path("v.mp4"))
    Image.new("L", (4, 4)).save("small.png")
    assert_one_sentence(run("v.mp4", *words), told)
    assert not server.calls
    assert {path.name for path in Path().iterdir()} - {"home"} == {"v.mp4", "small.png"}


def test_no_server_is_told_at_once(run: Run) -> None:
    write_video(Path("v.mp4"))
    assert_one_sentence(run("v.mp4", "--point", "0,4,4"), "no server responds at 127.0.0.1:")


def test_without_pyav(run: Run, server: FakeVideoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    write_video(Path("v.mp4"))
    write_folder(Path("f"), ["0.png"])
    monkeypatch.setitem(sys.modules, "av", None)
    assert_one_sentence(run("v.mp4", "--point", "0,4,4"), "video files need PyAV: ")
    assert run("f", "--point", "0,4,4", "--out", "m/").code == 0


# runs that were stopped


class Stopping(FakeVideoServer):
    """Presses Ctrl-C, or kills the client, at the answer to a frame."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        super().__init__(draw=by_object)
        self.at: int | None = at
        self.error = error

    def stop_at(self, add: Any) -> Any:
        def adding(results: ResultFile, frame: Any) -> None:
            add(results, frame)
            if frame.index == self.at:
                self.at = None
                raise self.error

        return adding


class Killed(BaseException):
    """What a kill leaves undone."""


@pytest.mark.parametrize(
    ("at", "ways", "error"),
    [
        (3, "--both", KeyboardInterrupt),
        (25, "--both", KeyboardInterrupt),
        (1, "--reverse", KeyboardInterrupt),
        (9, "--both", Killed),
        (25, "--both", Killed),
        (2, "--both", Killed),
    ],
)
def test_the_same_command_goes_on(
    at: int, ways: str, error: type[BaseException], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(Path("v.mp4"), 30)
    words = ("v.mp4", "--point", "6,4,4", "--out", "o.json", "--out", "m/", "--state-every", "4", ways)
    server = Stopping(at, error)
    monkeypatch.setattr(video_client, "video_servers", lambda *_, **__: reached(server))
    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "add", server.stop_at(ResultFile.add))
        if error is KeyboardInterrupt:
            ended = run(*words)
            assert ended.code == 130
            assert "the same command goes on" in ended.err
        else:
            with pytest.raises(Killed):
                run(*words)
    assert not Path("o.json").exists()
    first = len(server.done("track"))
    results = Path(".m.track/results.jsonl")
    missing = (7 if ways == "--reverse" else 30) - len(results.read_bytes().splitlines())
    with results.open("ab") as file:
        file.write(b'{"frame": 3, "obj')  # a line that was not finished
    assert_one_sentence(run(*words, "--model", "other"), "has a stopped run with another model")
    ended = run(*words)
    assert ended.code == 0, ended.err
    tracked = [video["frame"] for video in server.done("track")[first:]]
    assert len(set(tracked)) == len(tracked)
    assert missing <= len(tracked) <= missing + 2 * 4  # what was not saved by the last state, at most
    assert sum(video["step"] == 1 for video in server.done("prompt")) == (1 if len(server.done("prompt")) == 1 else 2)
    stopped = Path("o.json").read_text()
    assert not Path(".m.track").exists()
    assert run(*words).code == 0
    assert Path("o.json").read_text() == stopped
    assert len(list(Path("m").iterdir())) == 30


@pytest.mark.parametrize("method", [(ResultFile, "add"), (LabelFolder, "write"), (OverlayVideo, "add")])
def test_a_full_disk_stops_a_run_which_then_goes_on(
    method: tuple[type, str], server: FakeVideoServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(Path("v.mp4"))
    words = ("v.mp4", "--point", "0,4,4", "--out", "o.mp4", "--out", "m/", "--out", "c.json")
    calls = itertools.count()
    kept = getattr(*method)

    def full(*given: Any) -> Any:
        if next(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return kept(*given)

    with monkeypatch.context() as patch:
        patch.setattr(*method, full)
        assert_one_sentence(
            run(*words), "results cannot be written (No space left on device): make room, then the same command goes on"
        )
    assert {path.name for path in Path().iterdir()} - {"home"} == {"v.mp4", ".o.mp4.track"}
    assert run(*words).code == 0
    assert {path.name for path in Path().iterdir()} - {"home"} == {"v.mp4", "o.mp4", "m", "c.json"}


def test_a_limit_of_file_sizes_is_a_full_disk_too(server: FakeVideoServer, run: Run) -> None:
    write_video(Path("v.mp4"), 40)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        ended = run("v.mp4", "--point", "0,4,4", "--out", "o.mp4")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_one_sentence(ended, "results cannot be written", "(File too large): make room")
    assert not Path("o.mp4").exists()


def test_two_runs_do_not_write_the_same_outputs(server: FakeVideoServer, run: Run) -> None:
    write_video(Path("v.mp4"))
    with opened(Path(".overlay.mp4.track"), {}, (WIDTH, HEIGHT)):
        assert_one_sentence(run("v.mp4", "--point", "0,4,4"), "another process writes the same outputs")
    assert run("v.mp4", "--point", "0,4,4").code == 0


@pytest.mark.parametrize(
    ("name", "told"),
    [("state.bin", "is damaged: delete its folder"), ("job.json", "cannot be used"), ("results.jsonl", "is damaged")],
)
def test_a_damaged_folder_is_told(
    name: str, told: str, run: Run, server: FakeVideoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(Path("v.mp4"), 30)
    words = ("v.mp4", "--point", "0,4,4", "--state-every", "4")
    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "add", Stopping(20, KeyboardInterrupt).stop_at(ResultFile.add))
        assert run(*words).code == 130
    (Path(".overlay.mp4.track") / name).write_bytes(b"nothing\n")
    assert_one_sentence(run(*words), told)


def test_another_video_of_the_same_name_is_no_former_run(
    run: Run, server: FakeVideoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(Path("v.mp4"), 30)
    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "add", Stopping(20, KeyboardInterrupt).stop_at(ResultFile.add))
        assert run("v.mp4", "--point", "0,4,4").code == 130
    write_video(Path("v.mp4"), 31)
    assert_one_sentence(run("v.mp4", "--point", "0,4,4"), "has a stopped run with another content")


# streams


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
            self.closed.wait()
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
