"""Description of the machine: CPU, GPU, versions of packages, commit."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from triton_sam import __version__

_PACKAGES = ("onnxruntime", "torch", "transformers", "numpy", "nvidia-pytriton")
_MIB = 2**20


def machine(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """CPU, GPU and versions; what is not installed has no entry."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    card = gpu()
    return {
        **({"gpu": card} if card else {}),
        "cpu": f"{cpu}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "triton-sam": __version__,
        **versions,
    }


def gpu() -> str | None:
    """Name and driver of the first GPU; None if there is no GPU."""
    found = _query_gpu("name,driver_version")
    if found is not None:
        name, _, driver = found.partition(", ")
        return f"{name}, driver {driver}"
    torch = sys.modules.get("torch")  # not imported here, because that takes seconds
    return str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_available() else None


def gpu_bytes() -> int | None:
    """Memory in use on the first GPU, by all processes; None if there is no GPU."""
    found = _query_gpu("memory.used")
    return int(found) * _MIB if found is not None and found.isdecimal() else None


def _query_gpu(fields: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def commit() -> str | None:
    """The commit if the package runs from a checkout, with ``-dirty`` if files were changed since.

    Figures in docs/data are none of these: each measurement of a series writes some.
    """
    name = _git("describe", "--always", "--exclude=*")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)docs/data")
    if not name or changed is None:
        return None
    return f"{name}-dirty" if changed else name


def _git(*words: str) -> str | None:
    """What git says of the checkout around this file; None without git or a checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
