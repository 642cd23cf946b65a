"""Runs ``triton-sam serve`` as its own process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually

PORTS = ("http", "grpc", "metrics", "service")


@contextlib.contextmanager
def serve_command(
    repository: Path, home: Path, variables: dict[str, str] | None = None, **ports: int
) -> Iterator[subprocess.Popen[str]]:
    """The running command; ports that are not given are free ones."""
    options = [f"--{name}-port={ports.get(name, 0)}" for name in PORTS]
    command = [sys.executable, "-m", "triton_sam.cli", "serve", f"--model-repository={repository}", *options]
    environment = os.environ | {"TRITON_SAM_HOME": str(home)} | (variables or {})
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_serving(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if "serving until" in line:
            return
    pytest.fail("serve ended before it was ready")


def expect_in_flight(home: Path, count: int) -> None:
    """Waits until its model has ``count`` requests in flight."""
    counts = list(home.glob("run/*/flight/sam2.*"))  # of each of its processes
    eventually(
        lambda: sum(int.from_bytes(each.read_bytes(), "little") for each in counts) == count,
        f"{count} in flight",
        pause=0.01,
    )
