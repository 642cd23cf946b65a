"""Generated parts of the reference: the command line, the settings and the options of everything mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer.main

from triton_sam.cli.app import app
from triton_sam.service.routes.everything_schemas import EverythingOptions
from triton_sam.settings import Settings, VideoServiceSettings


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


#: The parts by the names that the pages use.
PARTS: dict[str, Callable[[], str]] = {
    "cli": cli_reference,
    "settings": settings_table,
    "everything": everything_table,
}
