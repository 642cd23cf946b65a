"""Generated parts of the reference: command line, settings, options of everything mode, metrics, errors, decisions."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer.main
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from triton_sam import errors
from triton_sam.cli.app import app
from triton_sam.errors import SetupError, TritonSamError, spelled
from triton_sam.service.routes.everything_schemas import EverythingOptions
from triton_sam.service.telemetry.metrics import BodyBytesCollector, ServiceMetrics
from triton_sam.service.telemetry.supervisor_metrics import SupervisorCollector
from triton_sam.settings import Settings, VideoServiceSettings

ROOT = Path(__file__).resolve().parent.parent
#: The dictionaries of src/triton_sam/backend/metrics.py -> (kind, labels). The module itself needs Triton.
_TRITON_METRICS = {
    "_SEGMENTER_COUNTERS": ("counter", "model"),
    "_SEGMENTER_GAUGES": ("gauge", "model"),
    "_DEVICE_COUNTERS": ("counter", "model, device"),
    "_DEVICE_GAUGES": ("gauge", "model, device"),
    "VLM_COUNTERS": ("counter", "model"),
}
#: What a caller does about an error.
_WHAT_TO_DO = {
    "InvalidInput": "Change what the message names. `param` has the field.",
    "TooLarge": "Send less, or raise the setting that the message names.",
    "TooManyObjects": "Remove an object of the video first.",
    "NotAuthorised": "Send `Authorization: Bearer TOKEN`; clients take `token=` or `TRITON_SAM_TOKEN`.",
    "Forbidden": "Name the page's origin in `TRITON_SAM_CORS_ORIGINS`.",
    "MethodNotAllowed": "Use the method in the `Allow` header.",
    "RequestTimeout": "Send the body without a pause; look at the network.",
    "Unsupported": "Use another prompt, or another model: `GET /models` lists their `prompts`.",
    "NotFound": "Check the name: `GET /models` lists those that are served.",
    "Conflict": "Wait for what is going on, or cancel it; the message says which.",
    "UnsupportedMedia": "Convert the file to a kind that the message names.",
    "NotServed": "Start the server with a model that can: the message names one.",
    "ModelNotFound": "Check the name: `GET /v1/models` lists those that are served.",
    "ImageExpired": "Send the image again. The Python clients do it by themselves, once.",
    "SessionExpired": "Open the video again. The service does it by itself.",
    "Unavailable": "Try again after `Retry-After`. If it lasts, see `GET /health`.",
    "QueueFull": "Try again after `Retry-After`, and send fewer requests at a time.",
    "RateLimited": "Try again after `Retry-After`; the tokens file has the rate.",
    "Cancelled": "Nothing: a newer request of the session took its place.",
    "DeadlineExceeded": "Try again; raise `timeout` or `TRITON_SAM_SERVICE_SECONDS` for slow machines.",
    "InternalError": "Look for the request id of the message in the server's log.",
    "ServerUnreachable": "Check the address, and that `triton-sam serve` runs.",
    "SetupError": "Do what the message says; `triton-sam doctor` finds more.",
    "WeightsError": "Check the connection or the mirror; see the guide to sites without internet.",
    "InterruptedDownload": "Run the same command again: it resumes.",
    "ServerError": "Read the log that the message names.",
    "CrashedAtStart": "Nothing: the start is repeated. If it lasts, read the log.",
    "JobStopped": "Remove the cause, then run the same command again.",
    "JobInterrupted": "Run the same command again to go on.",
}


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


def service_metrics_table() -> str:
    """What `GET /metrics` of the service has."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in vars(ServiceMetrics()).values():
        if isinstance(metric, MetricWrapperBase):
            kind = metric._type
            name = metric._name + ("_total" if kind == "counter" else "")
            rows.append(f"| `{name}` | {kind} | {', '.join(metric._labelnames)} | {metric._documentation} |")
    collectors: tuple[Collector, ...] = (BodyBytesCollector(lambda: 0), SupervisorCollector(dict))
    for collector in collectors:
        for family in collector.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            rows.append(f"| `{name}` | {family.type} |  | {family.documentation} |")
    return "\n".join(rows) + "\n"


def triton_metrics_table() -> str:
    """What the models add to Triton's own metrics."""
    tree = ast.parse((ROOT / "src/triton_sam/backend/metrics.py").read_text())
    found = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    assert found.keys() == _TRITON_METRICS.keys(), "give the new dictionary a kind and labels here"
    for dictionary, (kind, labels) in _TRITON_METRICS.items():
        for name, text in found[dictionary].items():
            end = "_total" if kind == "counter" else ""
            rows.append(f"| `triton_sam_{name}{end}` | {kind} | {labels} | {text} |")
    return "\n".join(rows) + "\n"


def request_errors_table() -> str:
    """The errors that a request can end with."""
    rows = ["| code, exception | HTTP, Triton | meaning | what to do |", "|---|---|---|---|"]
    for cls in sorted(_errors(of_requests=True), key=lambda cls: cls.http_status):
        rows.append(
            f"| `{spelled(cls, '_')}`<br>`{cls.__name__}` | {cls.http_status}<br>{cls.triton_code} | "
            f"{_meaning(cls)} | {_WHAT_TO_DO[cls.__name__]} |"
        )
    return "\n".join(rows) + "\n"


def machine_errors_table() -> str:
    """The errors of commands on this machine."""
    rows = ["| exception | meaning | what to do |", "|---|---|---|"]
    for cls in _errors(of_requests=False):
        rows.append(f"| `{cls.__name__}` | {_meaning(cls)} | {_WHAT_TO_DO[cls.__name__]} |")
    return "\n".join(rows) + "\n"


def decisions() -> str:
    """The list of docs/adr, by the titles of its pages."""
    rows = []
    for page in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")):
        number, _, title = page.read_text().splitlines()[0].removeprefix("# ").partition(". ")
        rows.append(f"{number}. [{title}]({page.name})")
    return "\n" + "\n".join(rows) + "\n\n"


def _errors(*, of_requests: bool) -> list[type[TritonSamError]]:
    """The exceptions in the order of the source."""
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TritonSamError)]
    local = (SetupError, errors.JobStopped)
    return [cls for cls in classes if cls is not TritonSamError and issubclass(cls, local) is not of_requests]


def _meaning(cls: type[TritonSamError]) -> str:
    text = (cls.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split()).replace("``", "`")


#: The parts by the names that the pages use.
PARTS: dict[str, Callable[[], str]] = {
    "cli": cli_reference,
    "settings": settings_table,
    "everything": everything_table,
    "service_metrics": service_metrics_table,
    "triton_metrics": triton_metrics_table,
    "request_errors": request_errors_table,
    "machine_errors": machine_errors_table,
    "decisions": decisions,
}
