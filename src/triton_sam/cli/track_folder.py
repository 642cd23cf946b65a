"""The folder of a run of ``triton-sam track``: its results so far, and how far it has come."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam.client.video_log import Checkpoint
from triton_sam.errors import InvalidInput, JobStopped
from triton_sam.files import whole_file
from triton_sam.video.results import ResultFile


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run has come: the state of the session behind one frame of one pass."""

    at: int
    frame: int
    objects: list[int]
    checkpoint: Checkpoint

    def next_frame(self, passes: list[tuple[int, bool]]) -> int:
        return self.frame - 1 if passes[self.at][1] else self.frame + 1

    def write(self, path: Path) -> None:
        head = {"pass": self.at, "frame": self.frame, "objects": self.objects, "step": self.checkpoint.step}
        with whole_file(path) as file:
            file.write(json.dumps(head).encode() + b"\n")
            file.write(self.checkpoint.data)

    @staticmethod
    def read(path: Path) -> Position | None:
        try:
            head, _, data = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        try:
            content: Mapping[str, Any] = json.loads(head)
            checkpoint = Checkpoint(int(content["step"]), data)
            return Position(int(content["pass"]), int(content["frame"]), list(content["objects"]), checkpoint)
        except (ValueError, LookupError, TypeError):
            raise InvalidInput(f"{path} is damaged: delete its folder to begin again") from None


def fingerprint(paths: list[Path]) -> str:
    """Changes with the files of a video: their names, sizes and times."""
    about = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.exists()]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def folder_of(target: Path) -> Path:
    """The folder of a run's results, beside its first output."""
    target = target.resolve()
    return target.with_name(f".{target.name}.track")


@contextmanager
def opened(folder: Path, wanted: dict[str, Any], size: tuple[int, int]) -> Iterator[ResultFile]:
    """The results so far of a job; InvalidInput if the folder has those of another one, or another process uses it.

    Args:
        wanted: what must be the same for a run to go on, as JSON.
        size: (width, height) of the masks.
    """
    described = folder / "job.json"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"results cannot be kept in {folder} ({error.strerror or error}): give an --out that can be written"
        ) from None
    with _locked(folder):
        try:
            found = json.loads(described.read_bytes()) if described.exists() else None
        except (OSError, ValueError) as error:
            raise InvalidInput(f"the folder {folder} cannot be used ({error}): delete it") from None
        if found is None:
            with whole_file(described) as file:
                file.write(json.dumps(wanted).encode())
        elif found != wanted:
            names = ", ".join(name for name in wanted if found.get(name) != wanted[name])
            raise InvalidInput(
                f"{folder} has a stopped run with another {names}: give the former options to go on, another --out, or "
                "delete that folder to begin again"
            )
        results = ResultFile(folder / "results.jsonl", size)
        try:
            yield results
        finally:
            results.close()
            if not results.known:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def stopped_by_disk(*, is_kept: bool) -> Iterator[None]:
    """JobStopped for what the disk refuses while results are written.

    Args:
        is_kept: whether the same command goes on.
    """
    try:
        yield
    except OSError as error:
        what = "then the same command goes on" if is_kept else "and begin again"
        where = f" to {error.filename}" if error.filename else ""
        raise JobStopped(f"results cannot be written{where} ({error.strerror or error}): make room, {what}") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes out, where the system has such locks; InvalidInput if one is in."""
    if os.name != "posix":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(
                f"another process writes the same outputs ({folder}): wait for it, or give another --out"
            ) from None
        except OSError:
            pass  # some network shares have no locks
        yield
    finally:
        os.close(descriptor)
