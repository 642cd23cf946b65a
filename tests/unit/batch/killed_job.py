"""A job that kills itself with -9 at chosen moments.

usage: python -m tests.unit.batch.killed_job FOLDER EVENT [FOLDER EVENT ...]

Each pair is a process of its own. It ends at the EVENTth time that it opens, renames, lists or makes a file or a
folder, or begins a statement of SQLite. Prints for each whether it came to its end before, as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.unit.batch.state_helpers import BOXES, given, opened, run
from triton_sam.batch.state import database, recording
from triton_sam.batch.state.lock import job_lock

_EVENTS = {"open", "os.rename", "os.mkdir", "os.scandir"}
NAMES = [f"{number}.png" for number in range(60)]


def killer(at: int) -> Callable[[], None]:
    numbers = itertools.count(1)

    def step() -> None:
        if next(numbers) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return step


def run_and_kill(folder: Path, at: int) -> None:
    step = killer(at)
    prepare = database.prepare

    def traced(connection: sqlite3.Connection) -> None:
        prepare(connection)
        connection.set_trace_callback(lambda _statement: step())

    def audit(event: str, values: tuple[Any, ...]) -> None:
        if event in _EVENTS and str(folder) in str(values[0]):
            step()

    database.prepare = traced
    recording._MOST = 4  # many groups, so that kills meet jobs of which a part is recorded
    sys.addaudithook(audit)
    with job_lock(folder), opened(folder, given(NAMES, prompts=BOXES)) as store:
        run(store)


def main(words: Sequence[str]) -> None:
    ended = []
    for folder, at in zip(words[::2], words[1::2], strict=True):
        process = os.fork()  # no imports again, which take longer than the job
        if process == 0:
            run_and_kill(Path(folder), int(at))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert status in (0, -signal.SIGKILL)
        ended.append(status == 0)
    print(json.dumps(ended))  # noqa: T201  this is what it is for


if __name__ == "__main__":
    main(sys.argv[1:])
