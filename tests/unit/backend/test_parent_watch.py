"""A model's process ends after its server, even if all that it does is to wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.waiting import eventually
from triton_sam.server.host import process_alive

CHILD = """
import threading
from triton_sam.backend.parent_watch import end_after_parent
end_after_parent(look=0.01, grace=0.05)
print("watches", flush=True)
threading.Event().wait()
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
assert child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def test_a_process_that_waits_ends_with_its_parent_and_not_before() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert process_alive(child)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
    eventually(lambda: not process_alive(child), "the end of the child")
