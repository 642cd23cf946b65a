"""Runs of `triton-sam track` that were stopped or killed go on with the same command."""

from __future__ import annotations

import errno
import itertools
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.helpers import Run, assert_one_sentence
from tests.unit.client.video_server import FakeVideoServer, reached
from tests.video_clips import HEIGHT, WIDTH, by_object, write_video
from triton_sam.cli.track_folder import opened
from triton_sam.client import video_client
from triton_sam.video.label_frames import LabelFolder
from triton_sam.video.overlays import OverlayVideo
from triton_sam.video.results import ResultFile


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


def test_a_run_that_was_killed_before_frame_0_goes_on_with_it(
    server: FakeVideoServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(Path("v.mp4"), 30)
    # One prompt, frames 6 to 29 and 5 to 1 are 30 requests: the last state is the one behind frame 1.
    words = ("v.mp4", "--point", "6,4,4", "--out", "o.json", "--state-every", "5", "--both")
    add = ResultFile.add

    def killed(results: ResultFile, frame: Any) -> None:
        if frame.index == 0:
            raise Killed
        add(results, frame)

    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "add", killed)
        with pytest.raises(Killed):
            run(*words)
    server.calls.clear()
    assert run(*words).code == 0
    assert [video["frame"] for video in server.done("track")] == [0]


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
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
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
