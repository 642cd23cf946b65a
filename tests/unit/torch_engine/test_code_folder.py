"""The folder of compiled code: what is kept, what is not trusted, what is removed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triton_sam.engines.torch import code_folder
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.errors import SetupError

STEP = "encoder-1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "home" / "compiled"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def written(folder: CodeFolder, step: str = STEP, text: str = "code") -> Path:
    with folder.lock(), folder.writing(step) as new:
        (new / "code.bin").write_text(text)
    found = folder.find(step)
    assert found is not None
    return found


def test_a_step_is_kept_for_the_next_start_and_for_nobody_else(root: Path) -> None:
    place = written(CodeFolder(root, {"gpu": "a"}))
    assert CodeFolder(root, {"gpu": "a"}).find(STEP) == place
    assert (place / "code.bin").read_text() == "code"
    assert CodeFolder(root, {"gpu": "b"}).find(STEP) is None
    assert [mode(path) for path in (root, place.parent, place, place / "code.bin")] == [0o700, 0o700, 0o700, 0o600]


def test_what_was_not_finished_is_not_there(root: Path) -> None:
    folder = CodeFolder(root, {})
    with contextlib.suppress(OSError), folder.lock(), folder.writing(STEP) as new:
        (new / "code.bin").touch()
        raise OSError("full")
    assert folder.find(STEP) is None
    left = [folder.path / name for name in (".new-killed", ".old-killed")]
    for each in left:
        each.mkdir()
    with folder.lock():
        assert not any(each.exists() for each in left)
        left[0].mkdir()
    assert not left[0].exists()


def test_libraries_of_a_compiler_that_was_killed_are_not_loaded(root: Path) -> None:
    folder = CodeFolder(root, {})
    folder.inductor.mkdir()
    with folder.lock():
        pass
    assert folder.inductor.exists()
    with contextlib.suppress(SetupError), folder.lock():
        raise SetupError("compiling failed")
    assert folder.inductor.exists(), "those who use it may still read it"
    with folder.lock():
        assert not folder.inductor.exists()


def test_a_step_is_replaced_as_a_whole(root: Path) -> None:
    folder = CodeFolder(root, {})
    written(folder, text="damaged")
    assert (written(folder) / "code.bin").read_text() == "code"
    folder.remove(STEP)
    assert folder.find(STEP) is None
    folder.remove(STEP)


@pytest.mark.parametrize("which", ["root", "key", "step", "file"])
def test_code_that_others_could_have_written_is_not_loaded(
    which: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CodeFolder(root, {})
    place = written(folder)
    path = {"root": root, "key": folder.path, "step": place, "file": place / "code.bin"}[which]
    path.chmod(mode(path) | 0o020)
    assert folder.find(STEP) is None
    assert f"other users can change {path}" in caplog.text


def test_a_folder_that_was_open_to_others_is_emptied(root: Path) -> None:
    """Earlier versions made it with the usual mode, and kept torch's own cache there."""
    (root / "fxgraph").mkdir(parents=True)
    (root / "file").touch()
    root.chmod(0o755)
    folder = CodeFolder(root, {})
    assert list(root.iterdir()) == [folder.path]
    assert mode(root) == 0o700


def test_the_folder_of_another_user(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SetupError, match="belongs to another user"):
        CodeFolder(root, {})


def test_a_link_to_somewhere_else(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    root.parent.mkdir()
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetupError, match="other users can change"):
        CodeFolder(root, {})


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(SetupError, match="cannot hold compiled code"):
        CodeFolder(tmp_path / "home" / "compiled", {})


def test_the_keys_that_were_not_used_for_longest_are_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_folder, "_KEPT", 3)
    folders = [CodeFolder(root, {"number": number}) for number in range(5)]
    for age, folder in enumerate(folders):
        written(folder)
        os.utime(folder.path, (1000 - age, 1000 - age))
    folders[4].remove_stale()  # the oldest of all, but it is in use
    assert {path.name for path in root.iterdir()} == {folders[index].path.name for index in (0, 1, 4)}


def test_only_one_process_compiles_for_a_key(root: Path) -> None:
    folder = CodeFolder(root, {})
    script = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", script, str(folder.path / ".lock")]
    with folder.lock() as lock:
        assert lock is not None
        with folder.lock() as second:
            assert second is None
        assert subprocess.run(command, stderr=subprocess.PIPE, check=False).returncode == 1
    assert subprocess.run(command, check=False).returncode == 0


def test_the_lock_is_that_of_the_process_that_inherits_it(root: Path) -> None:
    """If the engine's process is killed, nobody else compiles before its compiler has ended."""
    folder = CodeFolder(root, {})
    with folder.lock() as lock:
        assert lock is not None
        heir = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=(lock,)
        )
    with heir:
        with folder.lock() as held:
            assert held is None
        heir.kill()
    with folder.lock() as free:
        assert free is not None


def test_a_replaced_step_has_another_identity(root: Path) -> None:
    folder = CodeFolder(root, {})
    assert folder.identity(STEP) is None
    written(folder)
    first = folder.identity(STEP)
    assert first == folder.identity(STEP)
    written(folder)
    assert folder.identity(STEP) not in (None, first)


def test_a_key_that_is_being_compiled_is_not_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_folder, "_KEPT", 1)
    busy, idle, own = (CodeFolder(root, {"number": number}) for number in range(3))
    with busy.lock():
        own.remove_stale()
    assert {path.name for path in root.iterdir()} == {busy.path.name, own.path.name}
    assert not idle.path.exists()
