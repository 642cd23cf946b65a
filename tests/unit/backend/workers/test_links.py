"""A worker's side of its connections."""

from __future__ import annotations

import os
import select
import socket
from contextlib import closing
from pathlib import Path

from triton_sam.backend.workers.channel import connect
from triton_sam.backend.workers.links import Links
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.settings import Settings


def test_why_a_model_does_not_load_is_told_before_the_worker_ends(tmp_path: Path) -> None:
    """Then the process ends; who has not been told would start another worker, again and again."""
    options = WorkerOptions(os.getpid(), "untold", "1", "sam2:tiny", str(tmp_path), 0, "cpu")
    links = Links(options)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        listener.bind(options.address)
        listener.listen()
        with closing(connect(options.address)) as process:
            links.add(listener.accept()[0])
            links.load(Settings())
            links.wait_greeted()
            told, _, _ = select.select([process._socket], [], [], 0)
            assert told, "it ended before it said why"
            header = next(process.messages()).header
    assert header["is"] == "failed"
    assert "sam2:tiny" in header["text"]
    assert links.ended.is_set()
