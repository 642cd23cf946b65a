"""The state of a batch job with many images: how long and how large a new job, its records and a resumed job are.

usage: python -m benchmarks.batch_state FOLDER [IMAGES] [PROMPTS]

FOLDER must be empty; IMAGES are 100,000 unless given, PROMPTS of each 10. Neither images nor servers are needed: the
sources are names, and results come at once. Each step is a process of its own; figures are printed as JSON, one line
each.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from triton_sam.batch.records import (
    Item,
    ItemPrompt,
    ItemResult,
    MaskRecord,
    Outcome,
    PromptImage,
    SegmentOptions,
    Source,
    Work,
)
from triton_sam.batch.runner import run_job
from triton_sam.batch.state.definition import JobDefinition
from triton_sam.batch.state.filling import JobInput
from triton_sam.batch.state.opening import open_job, results_of
from triton_sam.batch.state.results import ResultFiles
from triton_sam.batch.state.store import JobStore

STEPS = ("set up", "run", "resume", "read")


class ManyPrompts:
    """Boxes of a file that is not there."""

    categories: Sequence[Mapping[str, Any]] = ({"id": 1, "name": "cell"},)

    def __init__(self, images: int, prompts: int) -> None:
        self._images, self._prompts = images, prompts

    def images(self) -> Iterator[PromptImage]:
        return (PromptImage(str(number), f"{name_of(number)}", number) for number in range(self._images))

    def prompts(self) -> Iterator[tuple[str, ItemPrompt]]:
        for number in range(self._images):
            for place in range(self._prompts):
                yield str(number), ItemPrompt((place, 10.0, 50.0, 60.0), annotation_id=number * 100 + place)


class InstantExecutor:
    """Gives each image its boxes as masks, at once."""

    def __init__(self) -> None:
        self._works: list[Work] = []

    def room(self) -> int:
        return 64 - len(self._works)

    def submit(self, work: Work) -> None:
        self._works.append(work)

    def finished(self, timeout: float) -> Sequence[Outcome]:
        works, self._works = self._works, []
        return [
            Outcome(work, ItemResult(work.item, 1000, 1000, [mask_of(prompt) for prompt in work.prompts], "none", 0.1))
            for work in works
        ]

    def describe(self) -> str:
        return ""

    def close(self, *, at_once: bool) -> None:
        self._works.clear()


def mask_of(prompt: ItemPrompt) -> MaskRecord:
    counts = "PZX" * 60  # as long as the outline of a cell
    return MaskRecord({"size": [1000, 1000], "counts": counts}, 99, (1, 2, 3, 4), 0.9, prompt.annotation_id, 1)


def name_of(number: int) -> str:
    return f"folder {number // 10_000}/image {number}.tif"


def opened(folder: Path, images: int, prompts: int) -> JobStore:
    given = JobInput(
        lambda: (Source(name_of(n), Path("/data") / name_of(n), 10**6 + n, 10**18 + n) for n in range(images)),
        lambda source: (None,),
        lambda: ManyPrompts(images, prompts),
    )
    return open_job(folder, JobDefinition(("data",), SegmentOptions()), given)


def step(name: str, folder: Path, images: int, prompts: int) -> None:
    """One step, in a process of its own."""
    begun = time.perf_counter()
    store = opened(folder, images, prompts)
    files = ResultFiles(folder)
    store.waiting(16)
    ready, ready_cpu = time.perf_counter() - begun, time.process_time()  # with the imports
    if name == "run":
        run_job(store, files, InstantExecutor(), [], read_image=_no_image)
    elif name == "read":
        assert sum(len(result.masks) for result in results_of(store, files)) == images * prompts
    store.close()
    figures = {
        "step": name,
        "start_s": round(ready, 2),
        "start_cpu_s": round(ready_cpu, 2),
        "all_s": round(time.perf_counter() - begun, 2),
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "state_mb": round(sum(file.stat().st_size for file in folder.glob("job.sqlite3*")) / 1e6),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


def _no_image(item: Item) -> bytes:
    raise AssertionError(f"{item.name} is read")


def main(arguments: list[str]) -> None:
    folder, images, prompts, *name = [*arguments, *["100000", "10"][len(arguments) - 1 :]]
    if name:
        step(name[0], Path(folder), int(images), int(prompts))
        return
    for one in STEPS:
        command = [sys.executable, "-m", "benchmarks.batch_state", folder, images, prompts, one]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
