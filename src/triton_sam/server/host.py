"""Checks of what the embedded server needs from this machine; each error names the fix.

Shared by ``serve`` and ``doctor``. A "stub" is Triton's name for the program that runs one Python model.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triton_sam.errors import ServerError, SetupError
from triton_sam.installation import install, install_extra, missing_module

SHARED_MEMORY = Path("/dev/shm")
_SHARED_MEMORY_NEEDED = 256 * 1024 * 1024
_STUB = "triton_python_backend_stub"
_LINKED_PYTHON = re.compile(rb"libpython(\d\.\d+)\.so")


@dataclass(frozen=True, slots=True)
class TritonFiles:
    """The parts of the nvidia-pytriton wheel, or of another Triton, that we use."""

    binary: Path
    python_backend: Path
    stub_source: Path
    """The stub for this Python version; another Triton has it in ``python_backend`` already."""


def check_platform() -> None:
    """SetupError unless this is Linux, which the wheel's server needs."""
    if sys.platform != "linux":
        raise SetupError(
            f"the embedded server is for Linux and this is {platform.system()}: start it on a Linux machine "
            "(or in WSL or a container) and point here with TRITON_URL=host:8000"
        )


def find_triton(installation: Path | None = None) -> TritonFiles:
    """The server inside the installed wheel, or the one that ``installation`` names."""
    check_platform()
    if installation is not None:
        return _find_other_triton(installation)
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise SetupError(f"the embedded server is not installed: {install_extra('server')}")
    root = Path(spec.origin).parent / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    files = TritonFiles(
        root / "bin" / "tritonserver",
        root / "backends" / "python",
        root / "python_backend_stubs" / version / _STUB,
    )
    if not files.binary.exists() or not files.python_backend.exists():
        raise SetupError(
            f"the nvidia-pytriton package is incomplete: {install('--force-reinstall', 'nvidia-pytriton==0.7.0')}"
        )
    if not files.stub_source.exists():
        raise SetupError(f"the embedded server has no backend for Python {version}: use Python 3.10, 3.11 or 3.12")
    return files


def _find_other_triton(installation: Path) -> TritonFiles:
    """A Triton that is installed with its own stub, as in NVIDIA's container; nothing is written there."""
    backend = installation / "backends" / "python"
    files = TritonFiles(installation / "bin" / "tritonserver", backend, backend / _STUB)
    for part in (files.binary, files.stub_source):
        if not part.exists():
            raise SetupError(
                f"{part} is missing: TRITON_SAM_TRITONSERVER must name a folder with a complete Triton, "
                "such as /opt/tritonserver in NVIDIA's container; unset it for the embedded server"
            )
    linked = _LINKED_PYTHON.search(files.stub_source.read_bytes())
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # A stub imports packages only from an environment of its own Python version.
    if linked and linked[1].decode() != version:
        raise SetupError(
            f"the Triton in {installation} runs models with Python {linked[1].decode()} and this is {version}: "
            f"install triton-sam with Python {linked[1].decode()}"
        )
    return files


def known_flags(binary: Path, flags: Sequence[str]) -> list[str]:
    """The flags that a Triton's --help lists: releases and builds differ, and an unknown flag makes the start fail."""
    try:
        done = subprocess.run([binary, "--help"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{binary} does not run ({error}): is it a Triton for this machine?") from None
    text = (done.stdout + done.stderr).decode(errors="replace")
    return [flag for flag in flags if flag.partition("=")[0] in text]


def install_stub(files: TritonFiles) -> None:
    """Copies the stub for this Python into the wheel's backend folder: it finds its libraries only from there."""
    target = files.python_backend / _STUB
    if files.stub_source == target:
        return
    source_bytes = files.stub_source.read_bytes()
    try:
        if not target.exists() or target.read_bytes() != source_bytes:
            partial = target.with_suffix(f".{os.getpid()}")
            partial.write_bytes(source_bytes)
            partial.chmod(0o755)
            partial.replace(target)
        for program in (files.binary, target):
            if not os.access(program, os.X_OK):
                program.chmod(0o755)
    except OSError as error:
        raise SetupError(
            f"cannot prepare the server's files in {files.python_backend} ({error.strerror}): "
            "install triton-sam in a virtual environment that you can write to"
        ) from None


def find_libpython() -> Path:
    """The shared library of the running Python, which the stub loads."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    configured = sysconfig.get_config_var("LIBDIR") or ""
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{platform.machine()}-linux-gnu"
    folders = [Path(sys.base_prefix) / "lib", Path(configured)]
    folders += [Path(root) / multiarch for root in ("/usr/lib", "/lib")] + [
        Path("/usr/lib64"),
        Path("/usr/lib"),
    ]
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    package = f"libpython{sys.version_info.major}.{sys.version_info.minor}"
    raise SetupError(
        f"{name} is missing and the server's backend needs it: install Debian's or Ubuntu's {package}, "
        "or a Python that was built with --enable-shared"
    )


def check_numpy() -> str:
    """The numpy version of this environment, which the backend shares; SetupError for numpy 2."""
    try:
        version = importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        raise SetupError(f"numpy is not installed: {install_extra('server')}") from None
    if int(version.split(".")[0]) >= 2:
        raise SetupError(f"numpy {version} makes the embedded server's backend return wrong data: {install('numpy<2')}")
    return version


def check_runtime() -> str:
    """SetupError unless the packages that a model process imports are installed."""
    for module, package in (("onnxruntime", "onnxruntime"), ("cv2", "opencv-python-headless")):
        if importlib.util.find_spec(module) is None:
            raise SetupError(f"{package} is not installed: {install_extra('server')}")
    return "onnxruntime and OpenCV"


def check_vlm_runtime() -> str:
    """SetupError unless the packages of vision-language models are installed; none is imported here."""
    missing = missing_module("vlm")
    if missing:
        raise SetupError(f"{missing} is not installed and vision-language models need it: {install_extra('vlm')}")
    return "torch and transformers"


def check_shared_memory() -> int:
    """Free bytes of /dev/shm, through which the server and its models exchange tensors."""
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError as error:
        raise SetupError(f"{SHARED_MEMORY} cannot be used ({error.strerror}): mount a tmpfs there") from None
    if free < _SHARED_MEMORY_NEEDED:
        raise SetupError(
            f"{SHARED_MEMORY} has {free / 1e6:.0f} MB free and {_SHARED_MEMORY_NEEDED / 1e6:.0f} MB are needed: "
            "free some, or start the container with --shm-size=1g"
        )
    return free


def check_port(host: str, port: int, name: str) -> None:
    """ServerError if the port is in use."""
    if not 0 <= port <= 65535:
        raise ServerError(f"{port} is not a port: choose one below 65536 with --{name}-port")
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(address[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except OSError as error:
        raise ServerError(
            f"the {name} port {port} on {host} cannot be used ({error.strerror}): "
            f"stop what uses it or choose another with --{name}-port"
        ) from None


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def process_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def process_seconds() -> float:
    """Seconds since this process was started, before its interpreter was."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def process_known(pid: int) -> bool:
    """Whether the kernel still lists a process, even as a zombie that its parent has not reaped."""
    return Path(f"/proc/{pid}").exists()


def sweep_shared_memory(prefix: str) -> list[str]:
    """Deletes the regions of our dead servers and returns their names, which contain the pid of their owner."""
    swept = []
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        owner = region.name.removeprefix(prefix).partition("_")[0]
        if owner.isdigit() and not process_alive(int(owner)):
            region.unlink(missing_ok=True)
            swept.append(region.name)
    return swept
