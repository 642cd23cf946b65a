"""``triton-sam doctor`` on devices: the GPUs, those that ``serve`` would use, and those of servers that run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam.cli.findings import FINE, NOTE, WRONG, Finding
from triton_sam.engines.device_list import AUTO, devices_of, own_gpu, visible_gpus
from triton_sam.engines.readiness import Stage
from triton_sam.models.specs import NETWORK_FILE
from triton_sam.repository.model_folders import newest_version
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.server.ping_message import DeviceState
from triton_sam.server.running import ServerRecord
from triton_sam.settings import Settings

#: The command whose output :func:`read_gpus` takes.
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader")
_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of this machine, whether it may be used or not."""

    number: str
    uuid: str
    text: str
    """Its name and memory."""


def read_gpus(table: str | None) -> list[Gpu]:
    """The GPUs in the output of :data:`QUERY`; none if there is no such program, or it fails."""
    rows = [[cell.strip() for cell in line.split(",")] for line in (table or "").splitlines()]
    return [Gpu(row[0], row[1], ", ".join(row[2:])) for row in rows if len(row) >= _COLUMNS]


def describe_machine(gpus: Sequence[Gpu]) -> Finding:
    """The devices of this machine."""
    if not gpus:
        return Finding("device", FINE, f"the CPU, {os.cpu_count()} cores (no NVIDIA GPU found)")
    return Finding("device", FINE, "; ".join(f"GPU {gpu.number}: {gpu.text}" for gpu in gpus))


def describe_use(settings: Settings, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Which GPUs ``triton-sam serve`` would use, if there are any or some are asked for."""
    if not gpus and not settings.devices:
        return
    uses: dict[str, list[str]] = {}
    named: list[str] = []
    for name, folder in _versions(settings).items():
        devices = devices_of(folder, settings)
        named += devices
        uses.setdefault(_use(devices, folder, settings, gpus), []).append(name)
    if not uses:
        named = settings.devices.split(",") if settings.devices else visible_gpus()
        uses[_labels(named, gpus) or "none"] = ["models that are set up with `--engine torch`"]
    absent = [device for device in dict.fromkeys(named) if _is_absent(device, gpus)]
    if absent:
        source = "TRITON_SAM_DEVICES" if settings.devices else "CUDA_VISIBLE_DEVICES"
        yield Finding("GPUs used", WRONG, f"there is no GPU {', '.join(absent)} here: change {source}")
    else:
        yield Finding("GPUs used", FINE, "; ".join(f"{use} by {', '.join(names)}" for use, names in uses.items()))


def describe_running(running: Sequence[ServerRecord]) -> Iterator[Finding]:
    """The state of each device of the servers that run here."""
    for record in running:
        for name, devices in record.devices().items():
            states = [_state(device) for device in devices]
            slow = [device for device in devices if device.get("state") != "ready" or _stays_slow(device)]
            where = f"{name} at {record.ports[0]}" if len(running) > 1 else f"{name} now"
            yield Finding(where, NOTE if slow else FINE, "; ".join(states))


def _versions(settings: Settings) -> dict[str, Path]:
    """Triton name -> folder of the newest version of each segmenter that is set up."""
    folders = {name: settings.repository / name for name in find_segmenters(settings.repository)}
    return {name: folder / str(newest_version(folder)) for name, folder in folders.items()}


def _use(devices: Sequence[str], folder: Path, settings: Settings, gpus: Sequence[Gpu]) -> str:
    if list(devices) != [AUTO]:
        return _labels(devices, gpus)
    if settings.device == "cpu":
        return "none (TRITON_SAM_DEVICE=cpu)"
    if "CUDA_VISIBLE_DEVICES" in os.environ and not visible_gpus():
        return "none (CUDA_VISIBLE_DEVICES hides them)"
    first, has_weights = _label(own_gpu(), gpus), (folder / NETWORK_FILE).is_file()
    if has_weights and settings.engine != "onnx":  # under WSL, where GPUs cannot be counted
        return first
    return f"{first} if ONNX Runtime has CUDA{'' if has_weights else ', all if it is set up with `--engine torch`'}"


def _labels(devices: Sequence[str], gpus: Sequence[Gpu]) -> str:
    return ", ".join(dict.fromkeys(_label(device, gpus) for device in devices))


def _label(device: str, gpus: Sequence[Gpu]) -> str:
    """``GPU 1`` for a number or the beginning of a UUID; other words as they are."""
    found = _find(device, gpus)
    if found is not None:
        return f"GPU {found.number}"
    return f"GPU {device}" if device.isdigit() else device


def _find(device: str, gpus: Sequence[Gpu]) -> Gpu | None:
    by_uuid = device.startswith("GPU-")
    return next((gpu for gpu in gpus if gpu.number == device or (by_uuid and gpu.uuid.startswith(device))), None)


def _is_absent(device: str, gpus: Sequence[Gpu]) -> bool:
    """Whether a device is a GPU that this machine does not have. Parts of one (``MIG-...``) are not known here."""
    return (device.isdigit() or device.startswith("GPU-")) and _find(device, gpus) is None


def _state(device: DeviceState) -> str:
    name = _label(str(device.get("device")), ())
    if device.get("state") != "ready":
        return f"{name}: {device.get('state')}"
    return f"{name}: {_speed(device.get('engine') or {})}, {device.get('in_flight')} in flight"


def _speed(engine: dict[str, Any]) -> str:
    stage, seconds, detail = engine.get("stage"), engine.get("seconds"), engine.get("detail")
    if stage == Stage.FULL_SPEED:
        return f"at full speed {seconds} s after its start" if seconds else "at full speed"
    if stage == Stage.COMPILING:
        return "serves uncompiled while another process compiles"
    return f"serves uncompiled, and slower: {detail}" if detail else "serves uncompiled, loads compiled code"


def _stays_slow(device: DeviceState) -> bool:
    return bool((device.get("engine") or {}).get("detail"))
