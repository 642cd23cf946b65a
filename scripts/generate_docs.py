"""Updates the generated parts of the documentation; `--check` only reports whether they are out of date.

A generated part is between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import typer.main
from draw_packages import PICTURE, picture

from triton_sam.bench.figures import Figure
from triton_sam.bench.report import markdown
from triton_sam.cli.app import app
from triton_sam.models.catalog import CATALOG
from triton_sam.models.concept_traits import concept_traits
from triton_sam.models.specs import ModelSpec, exported_graphs, raw_graphs
from triton_sam.models.vlm_catalog import VLM_CATALOG
from triton_sam.repository.profiles import PROFILES
from triton_sam.service.routes.everything_schemas import EverythingOptions
from triton_sam.settings import Settings, VideoServiceSettings

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/reference/cli.md",
    "docs/guides/scale.md",
    "docs/guides/everything.md",
    "docs/reference/settings.md",
    "docs/reference/models.md",
    "docs/how/results.md",
    "docs/how/reliability.md",
    "docs/how/testing.md",
    "docs/guides/slow.md",
)
DATA = ROOT / "docs" / "data"
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
HELM_SCHEMA = "deploy/helm/triton-sam/values.schema.json"
#: Settings that the chart sets itself or keeps in a secret, and TLS: it ends at the ingress, and probes use http.
HELM_OWN_SETTINGS = (
    "home", "url", "tritonserver", "token", "tokens_file", "ready_seconds", "device", "tls_certificate", "tls_key",
)  # fmt: skip
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def cli_reference() -> str:
    """Every command with its arguments and options."""
    lines: list[str] = []

    def describe(command: Any, path: str) -> None:
        lines.extend([f"### `{path}`", "", (command.help or "").strip(), ""])
        rows = [_parameter(parameter) for parameter in command.params if parameter.name not in ("help", "version")]
        if rows:
            lines.extend(["| argument | default | meaning |", "|---|---|---|", *rows, ""])
        for name, child in sorted(getattr(command, "commands", {}).items()):
            describe(child, f"{path} {name}")

    describe(typer.main.get_command(app), "triton-sam")
    return "\n".join(lines)


def _parameter(parameter: Any) -> str:
    option = parameter.param_type_name == "option"
    name = ", ".join(parameter.opts) if option else (parameter.metavar or parameter.name.upper())
    default = parameter.default
    if callable(default) or default in (None, False, "") or not isinstance(default, str | int | float | Path):
        shown = ""
    else:
        shown = f"`{getattr(default, 'value', default)}`"
    return f"| `{name}` | {shown} | {getattr(parameter, 'help', None) or ''} |"


def settings_table() -> str:
    """Every setting with its variable and default."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    # Inherited ones come last: they are of one part of the service.
    fields = sorted(Settings.model_fields.items(), key=lambda item: item[0] in VideoServiceSettings.model_fields)
    for name, field in fields:
        default = "the user's cache folder" if name == "home" else f"`{field.default}`"
        rows.append(f"| `TRITON_SAM_{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def everything_table() -> str:
    """Every option of everything mode."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, field in EverythingOptions.model_fields.items():
        shown = "512 / 1500" if name == "crop_overlap_ratio" else json.dumps(field.default)
        rows.append(f"| `{name}` | {'' if field.default is None else f'`{shown}`'} | {field.description} |")
    return "\n".join(rows) + "\n"


def models_table() -> str:
    """The catalogue."""
    measured = json.loads(EXPORTS.read_text())
    rows = [
        "| id | input | embeddings | a cached image | parameters | download | memory, serving | licence | best for |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for spec in CATALOG.values():
        shapes = "<br>".join(f"{name} {_shape(shape)}" for name, shape in raw_graphs(spec).encoder.outputs)
        # The ready-made graphs are the same network, so the measurement of its export holds for them too.
        memory = f"{measured[spec.id]['serve_gib']:.1f} GiB" if spec.id in measured else "not measured"
        size = "none" if spec.embedded else f"{spec.size / 1e6:.0f} MB"
        rows.append(
            f"| `{spec.id}` | {spec.side} px, {spec.resize.value} | {shapes} | {_cached(spec)} | "
            f"{spec.parameters:.1f} M | {size} | {memory} | {spec.licence} | {spec.best_for} |"
        )
    return "\n".join(rows) + "\n"


def _cached(spec: ModelSpec) -> str:
    """What the embedding cache keeps of an image in float32, and what words add to it."""
    plain = 4 * sum(math.prod(shape) for _, shape in spec.encoder.outputs) / 1e6
    if spec.architecture.concepts is None:
        return f"{plain:.1f} MB"
    traits = concept_traits(spec.architecture, spec.side)
    return f"{plain:.1f} MB, with words {plain + 4 * traits.channels * traits.side**2 / 1e6:.1f} MB"


def vlms_table() -> str:
    """The catalogue of vision-language models."""
    rows = [
        "| id | Triton names | parameters | download | licence | repository | best for |",
        "|---|---|---|---|---|---|---|",
    ]
    for spec in VLM_CATALOG.values():
        sources = [] if spec.source is None else [spec.source, *spec.parts]
        repositories = "<br>".join(f"{source.repo} at `{source.revision[:12]}`" for source in sources)
        parameters = f"{spec.parameters:.1f} M" if spec.parameters < 1000 else f"{spec.parameters / 1000:.2f} B"
        size = f"{spec.size / 1e9:.2f} GB" if sources else f"none, {spec.size / 1e6:.0f} MB in the package"
        rows.append(
            f"| `{spec.id}` | `{spec.name}`, `{spec.stream_name}` | {parameters} | {size} | {spec.licence} | "
            f"{repositories or 'this one, `training/shapes`'} | {spec.best_for} |"
        )
    return "\n".join(rows) + "\n"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape[1:]))


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


def profiles_table() -> str:
    """The models of the profiles for other tools."""
    rows = ["| tool | Triton model | encoder of | input | outputs |", "|---|---|---|---|---|"]
    for profile in PROFILES.values():
        for model in profile.models:
            graphs = exported_graphs(CATALOG[model.model_id].architecture, CATALOG[model.model_id].side)
            outputs = "<br>".join(
                f"{model.outputs.get(name, name)} {_shape(shape)}" for name, shape in graphs.encoder.outputs
            )
            low, high = model.pixel_range
            image = f"{graphs.encoder.image} 3x{graphs.side}x{graphs.side} in [{low:g}, {high:g}]"
            rows.append(f"| {profile.title} | `{model.name}` | `{model.model_id}` | {image} | {outputs} |")
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


PARTS = {
    "cli": cli_reference,
    "settings": settings_table,
    "everything": everything_table,
    "models": models_table,
    "vlms": vlms_table,
    "exports": exports_table,
    "words": words_table,
    "profiles": profiles_table,
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


def rendered(text: str) -> str:
    """A page with all its generated parts updated."""
    return _PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}{match[3]}", text)


def helm_schema(text: str) -> str:
    """The chart's schema with the names of all settings, so that Helm itself refuses unknown ones."""
    document = json.loads(text)
    names = sorted(name.upper() for name in Settings.model_fields if name not in HELM_OWN_SETTINGS)
    document["properties"]["settings"]["propertyNames"]["enum"] = names
    return json.dumps(document, indent=2) + "\n"


def main() -> int:
    check = "--check" in sys.argv
    drifted = []
    for name, made in {**dict.fromkeys(PAGES, rendered), HELM_SCHEMA: helm_schema, PICTURE: picture}.items():
        page = ROOT / name
        before = page.read_text()
        after = made(before)
        if before != after:
            drifted.append(name)
            if not check:
                page.write_text(after)
    if drifted:
        sys.stdout.write(f"{'drifted' if check else 'written'}: {', '.join(drifted)}\n")
    return 1 if check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
