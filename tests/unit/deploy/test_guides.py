"""The guides name commands, settings, metrics and ports that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from tests.unit.deploy.tools import COMPOSE_FILES
from triton_sam.cli.app import app
from triton_sam.models.catalog import CATALOG
from triton_sam.settings import Settings

pytestmark = pytest.mark.part("deploy")

ROOT = Path(__file__).resolve().parents[3]
GUIDES = [
    ROOT / "docs" / f"{name}.md" for name in ("guides/kubernetes", "start/gpu", "guides/air_gapped", "guides/slow")
]
FIELDS = {name.upper() for name in Settings.model_fields}
#: Counted by the containers' supervisor figures, whose names are made in service/telemetry/supervisor_metrics.py.
SUPERVISOR = "triton_sam_supervisor_"


@pytest.fixture(params=GUIDES, ids=lambda path: path.stem)
def guide(request: pytest.FixtureRequest) -> str:
    path: Path = request.param
    return path.read_text()


def commands(text: str) -> list[list[str]]:
    """What follows `triton-sam` in code, up to the end of the command."""
    code = re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text)
    found = []
    for part in code:
        for line in part.splitlines():
            for rest in re.findall(r"(?:^|[\s/])triton-sam ((?:[a-z][\w-]*)(?: [^#&|;]*)?)", line.split("#")[0]):
                found.append(rest.split())
    return found


def test_commands_and_their_options_exist(guide: str) -> None:
    program: Any = typer.main.get_command(app)
    for words in commands(guide):
        command = program
        for word in words:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
        assert command is not program, f"`triton-sam {' '.join(words)}` is no command"
        known = {option for parameter in command.params for option in parameter.opts}
        options = {word for word in words if word.startswith("--")}
        assert options <= known, f"`triton-sam {' '.join(words)}`"


def test_what_compose_shall_run_is_a_command() -> None:
    """The image's entry point hands the words on to `triton-sam`."""
    program: Any = typer.main.get_command(app)
    text = (ROOT / "docs" / "guides" / "deploy.md").read_text()
    asked = [line.split("#")[0].split() for line in re.findall(r"docker compose run --rm triton (.*)", text)]
    assert ["setup", "sam2.1:base_plus", "--engine", "torch"] in asked, "the first start would serve by onnxruntime-gpu"
    for name, *words in asked:
        context = program.commands[name].make_context(name, list(words))
        assert set(context.params["names"]) <= set(CATALOG)


def test_guides_name_images_that_are_built(guide: str) -> None:
    built = {
        yaml.safe_load((ROOT / file).read_text())["services"]["triton"]["image"].partition(":")[2]
        for file in COMPOSE_FILES
    }
    assert set(re.findall(r"\btriton-sam:(\d[\w.-]*)", guide)) <= built


def test_settings_exist(guide: str) -> None:
    assert set(re.findall(r"TRITON_SAM_([A-Z_]+)", guide)) <= FIELDS


def test_metrics_exist() -> None:
    models = ast.parse((ROOT / "src" / "triton_sam" / "backend" / "metrics.py").read_text())
    tables = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in models.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    counted = {f"triton_sam_{key}_total" for name in tables if name.endswith("COUNTERS") for key in tables[name]}
    gauges = {f"triton_sam_{key}" for name in tables if name.endswith("GAUGES") for key in tables[name]}
    service = (ROOT / "src" / "triton_sam" / "service" / "telemetry" / "metrics.py").read_text()
    own = set(re.findall(r'"(triton_sam_service_[a-z_]+)"', service))
    known = counted | gauges | own | {f"{name}_bucket" for name in own}
    files = [*GUIDES, *(ROOT / "deploy" / "helm").rglob("*.yaml")]
    made = {"triton_sam_queue_milliseconds"}  # by the Prometheus adapter
    for file in files:
        named = set(re.findall(r"\btriton_sam_[a-z_]+\b", file.read_text()))
        named = {name for name in named if not name.startswith(SUPERVISOR)}
        assert named <= known | made, f"{file.name}: {named - known - made}"
