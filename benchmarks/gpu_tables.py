"""All figures of a GPU machine that docs/how/results.md shows, measured in one go and written to docs/data.

usage: python -m benchmarks.gpu_tables FOLDER [PART ...] [--output docs/data] [--checkpoint FILE] [--commit HASH]

First, on a machine with the whole package: ``python -m benchmarks.gpu_tables FOLDER --prepare`` writes model
repositories without weights, and photographs, to FOLDER. Then, on a machine with a GPU and numpy, torch and
transformers, with TRITON naming the folder of an unpacked Triton (``scripts/pack_device.py`` packs it, and what else
is needed): each part runs in processes of its own, and its file is written as soon as it ends. A part that fails, or
takes longer than its limit, leaves its file as it was and does not end the others. Weights are random, but those of
sam2:tiny: ``--checkpoint``.
Parts, in their order:

"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.gpu_tables_parts import PARTS, Part
from triton_sam.bench.figures import Figure, short
from triton_sam.bench.machine import commit, machine

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = "sam2_hiera_tiny_image_fp16.safetensors"
#: In the folder: photographs, which a GPU machine may lack.
_PHOTOGRAPHS = "photographs"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = parsed(arguments)
    if given.prepare:
        prepare(given.folder)
        return 0
    failed = []
    for name, part in PARTS.items():
        if given.parts and name not in given.parts:
            continue
        begun = time.monotonic()
        try:
            figures = run_part(name, part, given)
            sys.stdout.writelines(f"  {figure.name}: {short(figure.value)} {figure.unit}\n" for figure in figures)
        except (Exception, SystemExit) as error:  # the other parts are worth their time
            failed.append(name)
            sys.stdout.write(f"  {name} failed: {type(error).__name__}: {error}\n")
        sys.stdout.write(f"{name}: {time.monotonic() - begun:.0f} s\n")
        sys.stdout.flush()
    if failed:
        sys.stdout.write(f"failed, and their files left as they were: {', '.join(failed)}\n")
    return 1 if failed else 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    about = "".join(f"  {name:<15} {part.about}, {part.seconds:.0f} s at most\n" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "") + about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of model repositories, compiled code and logs")
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "data", help="where the JSON files are written")
    parser.add_argument("--checkpoint", type=Path, help=f"weights of sam2:tiny; default: shared/weights/{CHECKPOINT}")
    parser.add_argument("--commit", help="of the code, where there is no clone")
    parser.add_argument("--prepare", action="store_true", help="only write the model repositories and photographs")
    given = parser.parse_intermixed_args(arguments)
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    given.folder = given.folder.resolve()
    given.output = given.output.resolve()
    given.checkpoint = given.checkpoint or next(
        (path for path in (ROOT / "shared/weights" / CHECKPOINT, ROOT.parent / "shared/weights" / CHECKPOINT)
         if path.exists()), None,
    )  # fmt: skip
    given.commit = given.commit or commit()
    if not given.prepare and given.commit is None:
        parser.error("this is no clone: tell --commit")
    return given


def prepare(folder: Path) -> None:
    """Writes the repositories that the parts need, without weights, and the photographs."""
    from benchmarks.concepts_model import concept_spec
    from benchmarks.concepts_served import write_repository
    from benchmarks.device_scale import MODEL
    from testkit.encoder_agreement import PHOTOGRAPHS
    from triton_sam.core.samples import sample_photograph
    from triton_sam.models.catalog import get_spec
    from triton_sam.models.specs import MEMORY_FILE, NETWORK_FILE
    from triton_sam.repository.setup import set_up_random

    for name, model, memory in (
        ("clicks", "sam2.1:base_plus", False),
        ("everything", "sam2:tiny", False),
        ("video", "sam2.1:base_plus", True),
    ):
        shutil.rmtree(folder / name, ignore_errors=True)
        set_up_random(get_spec(model), folder / name)
        (folder / name / MODEL / "1" / NETWORK_FILE).unlink()
        if not memory:
            (folder / name / MODEL / "1" / MEMORY_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder / "words", ignore_errors=True)
    write_repository(folder / "words", concept_spec(small=False))
    write_repository(folder / "words" / "clicks", concept_spec(small=False, concepts=False))
    with Image.open(sample_photograph()) as opened:
        photograph = opened.convert("RGB")
    for width, height in sorted({part.picture for part in PARTS.values() if part.picture is not None}):
        resized = photograph.resize((width, height), Image.Resampling.LANCZOS)
        resized.save(folder / _picture(width, height), quality=95)
    (folder / _PHOTOGRAPHS).mkdir(exist_ok=True)
    for name in PHOTOGRAPHS:
        shutil.copy(sample_photograph(name), folder / _PHOTOGRAPHS)


def _picture(width: int, height: int) -> str:
    return f"photograph_{width}x{height}.jpg"


def run_part(name: str, part: Part, given: argparse.Namespace) -> list[Figure]:
    """Runs a part's command and writes its file; raises if it fails or a figure is missing."""
    if part.real_weights:
        if given.checkpoint is None:
            raise SystemExit("needs --checkpoint")
        if not part.writes_file:
            write_weights(given.checkpoint, given.folder / part.repository)
    home = given.folder / f"home-{part.home or name}"
    if part.first_start:
        shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    # To a file beside the old one: a part that fails after it has begun to write leaves that as it is.
    fresh = given.folder / part.file
    fresh.unlink(missing_ok=True)
    words = list(part.words)
    for place, path in (("{folder}", given.folder), ("{checkpoint}", given.checkpoint), ("{file}", fresh)):
        words = [word.replace(place, str(path)) for word in words]
    out = given.folder / f"out-{name}"
    out.mkdir(exist_ok=True)
    environment = os.environ | part.environment | {"TRITON_SAM_HOME": str(home), "OUT": str(out)}
    if part.picture is not None:
        environment["SCALE_IMAGE"] = str(given.folder / _picture(*part.picture))
    if "TRITON" in environment:
        environment.setdefault("TRITON_SAM_TRITONSERVER", environment["TRITON"])
    log = out / "stdout.log"
    code = limited([sys.executable, *words], environment, log, part.seconds)
    if part.writes_file:
        # One is told of a bar that was missed by the exit code; its figures are written all the same.
        if not fresh.exists():
            raise SystemExit(f"ended with {code} and wrote nothing:\n{log.read_text(errors='replace')[-2000:]}")
        document = json.loads(fresh.read_text())
        figures = [Figure(**{key: row[key] for key in row if key != "reached"}) for row in document["figures"]]
        about = document.get("about", {})
    else:
        if code != 0:
            raise SystemExit(f"ended with {code}:\n{log.read_text(errors='replace')[-2000:]}")
        figures, about = list(part.collect(lines_in(log))), dict(part.models)
    write(given, name, part, figures, about)
    return figures


def write_weights(checkpoint: Path, repository: Path) -> None:
    """A checkpoint of sam2:tiny as the network file of a repository."""
    from safetensors.torch import save_file

    from benchmarks.device_scale import MODEL
    from triton_sam.export.checkpoint import load_weights
    from triton_sam.models.catalog import get_spec
    from triton_sam.models.specs import NETWORK_FILE
    from triton_sam.networks.segmenters import build

    spec = get_spec("sam2:tiny")
    network = build(spec.architecture, spec.side)
    load_weights(network, checkpoint, spec)
    tensors = {key: tensor.contiguous().clone() for key, tensor in network.state_dict().items()}
    save_file(tensors, repository / MODEL / "1" / NETWORK_FILE)


def limited(command: Sequence[str], environment: dict[str, str], log: Path, seconds: float) -> int:
    """The exit code of a command whose lines go to a file; it and all that it has started end after so many seconds."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"took more than {seconds:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def lines_in(log: Path) -> list[dict[str, Any]]:
    """The lines of JSON that a benchmark has printed."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict):
                found.append(told)
    return found


def write(given: argparse.Namespace, name: str, part: Part, figures: Sequence[Figure], about: dict[str, str]) -> None:
    """A file of docs/data: its head, then one figure on a line."""
    head = {
        "name": part.file.removesuffix(".json").replace("_", "-"),
        "commit": given.commit,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "command": f"python -m benchmarks.gpu_tables FOLDER {name}",
        "about": about,
    }
    rows = ",\n  ".join(json.dumps(asdict(figure) | {"reached": figure.reached}) for figure in figures)
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    text = "{\n" + ",\n".join([*lines, f' "figures": [\n  {rows}\n ]']) + "\n}\n"
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / part.file).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
