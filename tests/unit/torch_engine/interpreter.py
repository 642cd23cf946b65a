"""Kernels without a GPU: triton decides at import whether they are interpreted, so that each run is a process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[3]


def interpreted(module: str) -> Any:
    """What ``tests.unit.torch_engine.<module>`` prints as JSON; skipped only where there is no triton to install."""
    if platform.machine() != "x86_64":
        pytest.skip("triton has no package for this machine")
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", f"tests.unit.torch_engine.{module}"],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
