"""Generated parts of the documentation with results: tables of what docs/data/*.json records.

`scripts/generate_docs.py` writes them into the pages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from triton_sam.bench.figures import Figure
from triton_sam.bench.report import markdown

DATA = Path(__file__).resolve().parent.parent / "docs" / "data"
RESULT = DATA / "performance.json"
SERVICE_RESULTS = tuple(DATA / name for name in ("hover.json", "service.json"))
PAGE_RESULT = DATA / "page.json"
VLM_RESULT = DATA / "vlm.json"
COMPARE_RESULT = DATA / "compare.json"
CPU_ENCODER_RESULT = DATA / "cpu_encoder.json"
HALF_PRECISION_RESULT = DATA / "half_precision.json"
GPU_RESULT = DATA / "gpu.json"
GPU_HALF_PRECISION_RESULT = DATA / "half_precision_gpu.json"
CLICK_RESULT = DATA / "click.json"
MEMORY_RESULT = DATA / "memory.json"
TUNING_RESULT = DATA / "tuning.json"
THROUGHPUT_RESULT = DATA / "throughput.json"
EXPORTS = DATA / "exports.json"
#: One file for each fault, written by parts of the long suite; in a folder of its own, by the part faults-processes.
FAULTS = DATA / "faults"
FAULTS_OF_PROCESSES = FAULTS / "processes"
#: Written by `make test-all`.
TEST_RECORD = DATA / "test_record.json"


def exports_table() -> str:
    """The latest full-size run of `python -m benchmarks exports`."""
    rows = [
        "| id | export | memory, exporting | opset | encoder + decoder | largest difference, share of the deviation |",
        "|---|---|---|---|---|---|",
    ]
    for model_id, row in json.loads(EXPORTS.read_text()).items():
        files = row["files_mb"]
        encoder = sum(size for name, size in files.items() if name.startswith("encoder"))
        rows.append(
            f"| `{model_id}` | {row['seconds']:.0f} s | {row['export_gib']:.1f} GiB | {row['opset']} | "
            f"{encoder:.0f} + {files['decoder.onnx']:.0f} MB | {max(row['worst_share'].values()):.0e} |"
        )
    return "\n".join(rows) + "\n"


def words_table() -> str:
    """The same run: what finding words takes on a CPU."""
    rows = [
        "| id | text encoder + detector | loading | an image | a new text | a known text | memory, serving words |",
        "|---|---|---|---|---|---|---|",
    ]
    for model_id, row in json.loads(EXPORTS.read_text()).items():
        if "words" in row:
            words, files = row["words"], row["files_mb"]
            rows.append(
                f"| `{model_id}` | {files['text_encoder.onnx']:.0f} + {files['detector.onnx']:.0f} MB | "
                f"{words['load_s']:.1f} s | {words['image_s']:.2g} s | {words['new_text_s']:.2g} s | "
                f"{words['known_text_s']:.2g} s | {words['serve_gib']:.1f} GiB |"
            )
    return "\n".join(rows) + "\n"


def performance_table() -> str:
    """The latest recorded run of `make bench`."""
    return _recorded(RESULT)


def service_table() -> str:
    """The latest recorded runs of `triton-sam bench hover` and `python -m benchmarks service`."""
    return "\n".join(_recorded(path) for path in SERVICE_RESULTS)


def page_table() -> str:
    """The latest recorded run of `python -m benchmarks page`."""
    return _recorded(PAGE_RESULT)


def compare_table() -> str:
    """The latest recorded run of `triton-sam bench compare`."""
    return _recorded(COMPARE_RESULT)


def cpu_encoder_table() -> str:
    """The latest recorded run of `python -m benchmarks cpu-encoder`."""
    return _recorded(CPU_ENCODER_RESULT)


def gpu_table() -> str:
    """Recorded runs of `triton-sam bench` on a GPU."""
    return _recorded(GPU_RESULT)


def gpu_half_precision_table() -> str:
    """The same as :func:`half_precision_table`, on a GPU."""
    return _recorded(GPU_HALF_PRECISION_RESULT)


def half_precision_table() -> str:
    """The latest recorded run of `python -m benchmarks half-precision`."""
    return _recorded(HALF_PRECISION_RESULT)


def click_table() -> str:
    """The latest recorded run of `triton-sam bench click`."""
    return _recorded(CLICK_RESULT)


def memory_table() -> str:
    """The latest recorded run of `triton-sam bench memory`."""
    return _recorded(MEMORY_RESULT)


def tuning_table() -> str:
    """The latest recorded run of `python -m benchmarks tuning`."""
    return _recorded(TUNING_RESULT)


def throughput_table() -> str:
    """The latest recorded run of `triton-sam bench throughput` on CPUs."""
    return _recorded(THROUGHPUT_RESULT)


def vlm_table() -> str:
    """The latest recorded run of `python -m benchmarks vlm` on a GPU."""
    return _recorded(VLM_RESULT)


def scale_table() -> str:
    """Hours of a million images, from the rates of docs/data/scale.json."""
    scale = json.loads((DATA / "scale.json").read_text())
    lines = ["| machine | work | images a second | hours | GPU-hours |", "|---|---|---|---|---|"]
    for rate in scale["rates"]:
        for work, name in (("boxes", "ten boxes"), ("everything", "everything")):
            hours = scale["images"] / rate[work] / 3600
            gpu_hours = _hours(hours * rate["gpus"]) if rate["gpus"] else ""
            lines.append(f"| {rate['machine']} | {name} | {rate[work]:,} | {_hours(hours)} | {gpu_hours} |")
    return "\n".join(lines) + "\n"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 20 else f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}"


def faults_table() -> str:
    """The measurements of the parts faults, faults-processes, devices, overload, soak and mutations, by fault."""
    rows = ["| fault or load | what | measured | several processes | must hold |", "|---|---|---|---|---|"]
    for path in sorted(FAULTS.glob("*.json")):
        document = json.loads(path.read_text())
        other = FAULTS_OF_PROCESSES / path.name
        several = {row["what"]: row for row in json.loads(other.read_text())["figures"]} if other.exists() else {}
        known = {row["what"] for row in document["figures"]}
        more = [row | {"value": ""} for what, row in several.items() if what not in known]
        shown = document["fault"]
        for row in [*document["figures"], *more]:
            twin = several.get(row["what"])
            bar = row["bar"] if twin is None or twin["bar"] == row["bar"] else f"{row['bar']}; several: {twin['bar']}"
            seen = "" if twin is None else _fault_value(twin["value"])
            rows.append(f"| {shown} | {row['what']} | {_fault_value(row['value'])} | {seen} | {bar} |")
            shown = ""
    return "\n".join(rows) + "\n"


def _fault_value(value: object) -> str:
    return ", ".join(f"{name}: {count}" for name, count in value.items()) if isinstance(value, dict) else f"{value}"


def test_record_table() -> str:
    """The latest run of each part of the long suite."""
    rows = ["| part | what it holds | date | commit | machine | minutes | result |", "|---|---|---|---|---|---|---|"]
    for name, row in json.loads(TEST_RECORD.read_text()).items():
        result = f"{row['tests']} passed" + (f", {len(row['failed'])} failed" if row["failed"] else "")
        if row["skipped"]:
            reasons = "; ".join(f"{count}: {reason}" for reason, count in row["skipped"].items())
            result += f", {sum(row['skipped'].values())} skipped ({reasons})"
        rows.append(
            f"| `{name}` | {row['about']} | {row['date']} | `{row['commit']}` | {row['machine']} | "
            f"{row['minutes']} | {result} |"
        )
    return "\n".join(rows) + "\n"


def _recorded(path: Path) -> str:
    document = json.loads(path.read_text())
    figures = [Figure(**{k: v for k, v in row.items() if k != "reached"}) for row in document["figures"]]
    return markdown(figures, document["machine"])


#: The parts by the names that the pages use.
PARTS: dict[str, Callable[[], str]] = {
    "exports": exports_table,
    "words": words_table,
    "performance": performance_table,
    "service": service_table,
    "page": page_table,
    "vlm": vlm_table,
    "compare": compare_table,
    "cpu_encoder": cpu_encoder_table,
    "half_precision": half_precision_table,
    "gpu": gpu_table,
    "gpu_half_precision": gpu_half_precision_table,
    "click": click_table,
    "scale": scale_table,
    "memory": memory_table,
    "faults": faults_table,
    "tuning": tuning_table,
    "throughput": throughput_table,
    "test_record": test_record_table,
}
