"""How soon does the torch engine serve, and how soon is it at full speed? Without Triton, on one GPU.

``python -m benchmarks.gpu_start`` starts it several times in fresh processes, with one folder for compiled code.
While an engine is brought to full speed, two threads encode and click; every answer is compared with the first one.
Prints one JSON object for each start; its ``timeline`` has what was done when, in seconds: modules imported, the GPU's
context, weights, captured steps, the first answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

_STARTED = time.perf_counter()
_WEIGHTS = "network.safetensors"
#: Relative difference of logits between two stages, root mean square; the engine itself accepts 0.05 for each step.
_NEAR = 0.1
_ROUNDS = 200


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="sam2.1:base_plus")
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long full speed may take")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--home", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help="a small network, to try the program on a CPU")
    given = parser.parse_args()
    if given.one:
        _print(one_start(given))
        return
    with tempfile.TemporaryDirectory() as folder:
        home = given.home or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        _write_weights(given, home)
        for number in range(given.starts):
            begun = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.gpu_start", "--one", *sys.argv[1:], "--home", str(home)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True)
            told = json.loads(done.stdout.strip().rpartition("\n")[2]) if done.returncode == 0 else {}
            _print({"start": number + 1, "exit": done.returncode, "whole": _since(begun), **told})


def one_start(given: argparse.Namespace) -> dict[str, Any]:
    """Starts an engine in this process and uses it until it is at full speed."""
    from triton_sam.backend.workers import links  # noqa: F401 - as a worker does
    from triton_sam.engines.loading import load_engine
    from triton_sam.settings import Settings

    imported = _since(_STARTED)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)6d %(message)s")
    steps = _Steps()
    logging.getLogger().addHandler(steps)
    sys.setswitchinterval(1e-4)  # as the backend does
    mode = "auto" if given.device == "cuda" else "default"
    settings = Settings(home=given.home, device=given.device, engine="torch", torch_compile=mode)
    engine: Any = load_engine(_spec(given), given.home, settings)
    serves = _since(_STARTED)
    timeline = list(steps.found)
    used = _Use(engine)
    timeline.append((_since(_STARTED), "first answer"))
    used.measure("first")
    threads = [threading.Thread(target=used.repeat, args=(what,)) for what in ("image", "click")]
    ticks = _Ticks()
    for thread in (*threads, ticks):
        thread.start()
    assert engine.compilation is not None  # it was requested
    over = engine.compilation.wait(given.seconds)
    full = _since(_STARTED)
    ticks.stop()
    used.stop()
    for thread in threads:
        thread.join()
    used.measure("last")
    import torch

    told = {
        "timeline": timeline,
        "torch": torch.__version__,
        "imported": imported,
        "serves": serves,
        "over": over,
        "full_speed": full,
        "readiness": [engine.readiness.stage.value, engine.readiness.seconds, engine.readiness.detail],
        "longest_pause_ms": ticks.longest_ms,
        **used.told(),
    }
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        told["gpu_gib"] = round((total - free) / 2**30, 2)
    return told


class _Steps(logging.Handler):
    """Keeps log lines with their seconds since the start."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((_since(_STARTED), record.getMessage()))


class _Use:
    """Encodes and clicks, and compares every answer with the first one."""

    def __init__(self, engine: Any) -> None:
        import numpy as np
        from PIL import Image

        from triton_sam.core.images import EncodedImage
        from triton_sam.core.prompts import ObjectPrompt

        noise = np.random.default_rng(1).integers(0, 256, (24, 36, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).resize((1536, 1024)).save(buffer, "JPEG")
        self._engine = engine
        self._file = EncodedImage(buffer.getvalue(), max_bytes=2**24, max_pixels=2**24)
        self._point = ObjectPrompt(np.full((1, 2), 300, np.float32), np.ones(1, np.int32))
        self._embedding = engine.encode([engine.prepare(self._file)])[0]
        self._expected = self._click(self._embedding)
        self._over = threading.Event()
        self._times: dict[str, list[float]] = {}
        self._worst = 0.0
        self._answers = 0
        self._errors: list[str] = []

    def measure(self, when: str) -> None:
        """Images and clicks alone, one after the other."""
        for what in ("image", "click"):
            for _ in range(_ROUNDS if self._engine.capacity.on_cpu is False else 2):
                self._do(what, f"{what}, {when}")

    def repeat(self, what: str) -> None:
        """One after the other, until :meth:`stop`."""
        while not self._over.is_set():
            self._do(what, f"{what}, during")

    def stop(self) -> None:
        self._over.set()

    def told(self) -> dict[str, Any]:
        """Figures for the report."""
        times = {
            name: [len(taken), *(round(_quantile(taken, share), 2) for share in (0.5, 0.99, 1.0))]
            for name, taken in self._times.items()
        }
        return {
            "answers": self._answers,
            "errors": self._errors[:5],
            "wrong": self._worst > _NEAR,
            "largest_difference": round(self._worst, 4),
            "count_p50_p99_max_ms": times,
        }

    def _click(self, embedding: Any) -> Any:
        from triton_sam.engines.base import Row

        return self._engine.decode([Row(embedding, self._point, multimask=True)])[0].logits

    def _do(self, what: str, name: str) -> None:
        begun = time.perf_counter()
        try:
            if what == "image":
                (embedding,) = self._engine.encode([self._engine.prepare(self._file)])
            else:
                found = self._click(self._embedding)
            taken = 1000 * (time.perf_counter() - begun)
            if what == "image":
                found = self._click(embedding)
        except Exception as error:  # every one is counted
            self._errors.append(f"{type(error).__name__}: {error}")
            return
        off = float((((found - self._expected) ** 2).mean() / (self._expected**2).mean()) ** 0.5)
        self._worst = max(self._worst, off if off == off else float("inf"))  # NaN is no number
        self._answers += 1
        self._times.setdefault(name, []).append(taken)


class _Ticks(threading.Thread):
    """Measures how long other threads must wait for Python's lock."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self._longest = 0.0

    def run(self) -> None:
        last = time.perf_counter()
        while not self._over.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            self._longest, last = max(self._longest, now - last), now

    def stop(self) -> None:
        self._over.set()
        self.join()

    @property
    def longest_ms(self) -> float:
        return round(1000 * self._longest, 1)


def _spec(given: argparse.Namespace) -> Any:
    from triton_sam.models.catalog import get_spec
    from triton_sam.models.specs import exported_graphs

    spec = get_spec(given.model)
    architecture, side = spec.architecture, spec.side
    if given.small:
        architecture = dataclasses.replace(architecture, width=16, depths=(1, 1, 1, 1), heads=1, global_blocks=(2,))
        side = 256
    return dataclasses.replace(spec, architecture=architecture, graphs=exported_graphs(architecture, side))


def _write_weights(given: argparse.Namespace, home: Path) -> None:
    """Random ones, in a process of its own: this one holds no GPU."""
    if (home / _WEIGHTS).exists():
        return
    script = (
        "import argparse, sys; from pathlib import Path; from safetensors.torch import save_file; "
        "from benchmarks.gpu_start import _spec; from triton_sam.networks.segmenters import build; "
        "spec = _spec(argparse.Namespace(model=sys.argv[1], small=sys.argv[2] == 'True')); "
        "state = build(spec.architecture, spec.side).state_dict(); "
        "save_file({name: value.clone() for name, value in state.items()}, sys.argv[3])"
    )
    command = [sys.executable, "-c", script, given.model, str(given.small), str(home / _WEIGHTS)]
    subprocess.run(command, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _since(begun: float) -> float:
    return round(time.perf_counter() - begun, 2)


def _print(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
