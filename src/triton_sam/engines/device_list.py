"""Which devices a model uses, without importing torch: a process that only parses requests must stay small."""

from __future__ import annotations

import os
from pathlib import Path

from triton_sam.models.specs import NETWORK_FILE
from triton_sam.settings import Settings

#: The device that the engine chooses by itself.
AUTO = "auto"
#: Triton processes of a model without a setting; the Helm chart has this number too, for the size of /dev/shm.
MOST_PROCESSES = 8
_CORES_PER_PROCESS = 3


def visible_gpus(devices: Path = Path("/dev")) -> list[str]:
    """Numbers or UUIDs of the GPUs that CUDA will see, in its order."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
        return names[: names.index("-1")] if "-1" in names else [name for name in names if name]
    return [str(index) for index in range(len(list(devices.glob("nvidia[0-9]*"))))]


def own_gpu() -> str:
    """Number or UUID of the GPU that an engine of this process uses: the first one."""
    return (visible_gpus() or ["0"])[0]


def devices_of(folder: Path, settings: Settings) -> list[str]:
    """The devices of a model's version: GPUs, ``cpu``, or one that its engine chooses.

    Args:
        folder: of the version, with its graphs or weights.
    """
    if settings.devices:
        return settings.devices.split(",")
    on_torch = (folder / NETWORK_FILE).is_file() and settings.engine != "onnx" and settings.device != "cpu"
    return (visible_gpus() if on_torch else []) or [AUTO]


def use_device(device: str, settings: Settings) -> Settings:
    """Makes this process compute on one device; call it before torch or ONNX Runtime look for GPUs.

    Returns:
        The settings to load the engine with.
    """
    if device == "cpu":
        return settings.model_copy(update={"device": "cpu"})
    if device != AUTO:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    return settings


def processes_of(folder: Path, settings: Settings) -> int:
    """The number of Triton processes that read requests for a model's version.

    One process answers a single person fastest; several answer more people, and are needed to feed several GPUs.
    """
    if settings.processes:
        return settings.processes
    if len(devices_of(folder, settings)) == 1:
        return 1
    return max(2, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) // _CORES_PER_PROCESS))
