"""Programs that check deployment files: container builders, Prometheus, nginx."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
MONITORING = DEPLOY / "monitoring"
COMPOSE_FILES = ("docker-compose.yml", "docker-compose-cpu.yml")


def tool(name: str, source: str, *, required: bool = True) -> str:
    """Path of a program; if it is missing the test is skipped, or fails if TRITON_SAM_REQUIRE_DEPLOY_TOOLS is set.

    Args:
        required: whether that variable applies, because the program is available for every machine of this kind.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        missing = f"{name} is not installed ({source}), so what it checks was not checked"
        if required and os.environ.get("TRITON_SAM_REQUIRE_DEPLOY_TOOLS"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def run(*command: str | Path, **options: str) -> subprocess.CompletedProcess[str]:
    """Runs a program; ``options`` are added to its environment variables."""
    words = [str(word) for word in command]
    environment = os.environ | options
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=ROOT)


def expect_clean(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.args}:\n{done.stdout}{done.stderr}"
