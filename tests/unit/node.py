"""Runs scripts under node."""

from __future__ import annotations

import subprocess
from pathlib import Path


def run_node(node: str, *arguments: str | Path, given: str = "") -> str:
    done = subprocess.run(
        [node, *map(str, arguments)], input=given, capture_output=True, encoding="utf-8", check=False, timeout=100
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
