"""The process that compiles: one at a time, out of the way, and gone when its parent is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually
from triton_sam.engines.readiness import Stage
from triton_sam.engines.torch import compiling
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.engines.torch.compile_process import CompileRequest
from triton_sam.engines.torch.compiling import Compilation
from triton_sam.models.catalog import get_spec
from triton_sam.server.host import process_alive

ROOT = Path(__file__).parents[3]
STEPS = ("encoder-1", "decoder")
SECONDS = 120
#: Hardly lower than this process's: at the lowest one, a busy machine would let a test wait for minutes.
NICENESS = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 1)

#: The real process with another compiler, which tells what it has and waits until somebody opens its pipe.
PATIENT = """
import json, os, stat, subprocess, sys
from pathlib import Path
from triton_sam.engines.torch import compile_process

def compile_missing(request, folder, done):
    child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    Path(os.environ["TMPDIR"], "of a compiler").touch()
    (folder.path / ".new-half").mkdir(exist_ok=True)
    report = {
        "pids": [os.getpid(), child.pid],
        "niceness": [os.getpriority(os.PRIO_PROCESS, each) for each in (0, child.pid)],
        "sockets": sum(stat.S_ISSOCK(os.fstat(int(each)).st_mode) for each in open_files()),
        "files of a compiler": list(files_of(child.pid)),
        "threads": os.environ["TORCHINDUCTOR_COMPILE_THREADS"],
    }
    with (folder.root / "reports").open("a") as file:
        file.write(json.dumps(report) + "\\n")
    (folder.root / "go").read_text()
    child.kill()
    child.wait()
    for step in request.steps:
        with folder.writing(step) as new:
            (new / "code.bin").touch()
        done(step)

def open_files():
    for each in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(each))
        except OSError:  # that of the listing itself
            continue
        yield each

def files_of(pid):
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield os.readlink(each)
        except OSError:  # closed meanwhile: the process is starting
            continue

compile_process.compile_missing = compile_missing
compile_process.main()
"""
#: A process with an engine, which is killed while it compiles.
PARENT = """
import sys, threading
from pathlib import Path
from tests.unit.torch_engine.test_compile_process import NICENESS, compilation, compiling

compiling.NICENESS = NICENESS
made = compilation(Path(sys.argv[1]))
made.start()
threading.Event().wait()
"""


def compilation(root: Path, used: Callable[[Path], object] = lambda _: None) -> Compilation:
    spec = get_spec("sam2.1:tiny")
    folder = CodeFolder(root, {"gpu": "one"})
    request = CompileRequest(
        spec.architecture, spec.graphs, None, "cpu", "float32", "float32", "default", (), folder.root, folder.key
    )
    switches = dict.fromkeys(STEPS, used)
    return Compilation("a model", folder, request, switches, time.perf_counter(), ("-c", PATIENT))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    assert compiling.NICENESS == 19
    monkeypatch.setattr(compiling, "NICENESS", NICENESS)
    monkeypatch.setattr(compiling, "_POLL_SECONDS", 0.02)
    root = tmp_path / "compiled"
    root.mkdir(mode=0o700)
    os.mkfifo(root / "go")
    yield root
    for report in reports(root):  # nothing is left, whatever has failed
        for pid in report["pids"]:
            if process_alive(pid):
                os.kill(pid, signal.SIGKILL)


def reports(root: Path) -> list[dict[str, list[int]]]:
    """What the processes that were started tell of themselves."""
    file = root / "reports"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def let_go(root: Path) -> None:
    """Lets the one process that waits go on."""
    (root / "go").write_text("")


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*/.new-*"))


def test_it_is_out_of_the_way_and_inherits_nothing(root: Path) -> None:
    one, other = socket.socketpair()
    with one, other:
        os.set_inheritable(one.fileno(), True)  # as a library may open it
        made = compilation(root)
        made.start()
        eventually(lambda: reports(root), "the process runs", SECONDS)
        (report,) = reports(root)
        assert len(left_in(root)) == 2, "its temporary files"
        let_go(root)
        assert made.wait(SECONDS)
    assert made.readiness.stage is Stage.FULL_SPEED
    assert report["niceness"] == [NICENESS] * 2, "also that of compilers that it starts"
    assert report["sockets"] == 0
    assert not [name for name in report["files of a compiler"] if str(name).endswith(".lock")]
    assert not any(process_alive(pid) for pid in report["pids"])
    assert left_in(root) == []


def test_two_engines_that_start_at_the_same_moment_compile_once(root: Path) -> None:
    """Each uses every step, and only one has started a process."""
    used: list[Path] = []
    both = [compilation(root, used.append) for _ in range(2)]
    for made in both:
        made.start()
    eventually(lambda: [made.readiness.stage for made in both] == [Stage.COMPILING] * 2, "both wait", SECONDS)
    eventually(lambda: reports(root), "one process runs", SECONDS)
    let_go(root)
    assert all(made.wait(SECONDS) for made in both)
    assert [made.readiness.stage for made in both] == [Stage.FULL_SPEED] * 2
    assert len(reports(root)) == 1
    assert sorted(path.name for path in used) == sorted(2 * STEPS)


def test_it_is_stopped_with_everything_that_it_has_started(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = compilation(root)
    made.start()
    eventually(lambda: reports(root), "the process runs", SECONDS)
    made.stop()
    assert made.wait(SECONDS)
    assert (made.readiness.stage, made.readiness.detail) == (Stage.UNCOMPILED, "stopped")
    eventually(lambda: not any(process_alive(pid) for pid in reports(root)[0]["pids"]), "all have ended", SECONDS)
    assert left_in(root) == []
    assert "WARNING" not in caplog.text


def test_a_parent_that_is_killed_leaves_nothing_and_the_next_start_works(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(root)], cwd=ROOT) as parent:
        try:
            eventually(lambda: reports(root), "the process runs", SECONDS)
        finally:
            parent.kill()
    (report,) = reports(root)
    eventually(lambda: not any(process_alive(pid) for pid in report["pids"]), "all have ended", SECONDS)
    assert left_in(root) == []
    made = compilation(root)
    made.start()
    eventually(lambda: len(reports(root)) == 2, "another process compiles", SECONDS)
    let_go(root)
    assert made.wait(SECONDS)
    assert made.readiness.stage is Stage.FULL_SPEED
    assert left_in(root) == []
