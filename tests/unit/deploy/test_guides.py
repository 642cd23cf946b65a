"""The guides for operators name commands, settings, metrics, messages and files that are there."""

from __future__ import annotations

import ast
import re
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from tests.unit.deploy.tools import COMPOSE_FILES
from triton_sam.cli.app import app
from triton_sam.models.catalog import CATALOG
from triton_sam.service import schemas
from triton_sam.settings import Settings

pytestmark = pytest.mark.part("deploy")

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("start/gpu", *(f"guides/{name}" for name in ("many_users", "kubernetes", "air_gapped", "slow", "fails")))
GUIDES = [ROOT / "docs" / f"{name}.md" for name in NAMES]
FIELDS = {name.upper() for name in Settings.model_fields}
#: Variables of the compose files are no settings of the program.
COMPOSE_VARIABLES = {
    name for file in COMPOSE_FILES for name in re.findall(r"\$\{TRITON_SAM_([A-Z_]+)", (ROOT / file).read_text())
}
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
    text = (ROOT / "docs" / "guides" / "many_users.md").read_text()
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
    assert set(re.findall(r"TRITON_SAM_([A-Z_]+[A-Z])", guide)) <= FIELDS | COMPOSE_VARIABLES


def test_settings_of_the_list_exist() -> None:
    """In that of slow.md they have no prefix."""
    listed = (ROOT / "docs" / "guides" / "slow.md").read_text().partition("## Settings")[2].partition("<!--")[0]
    named = re.findall(r"`([A-Z_]+[A-Z])`", listed)
    assert len(named) > 3
    assert set(named) <= FIELDS


def test_files_of_the_repository_exist(guide: str) -> None:
    named = set(re.findall(r"(?<![\w/.])((?:deploy|scripts)/[\w./-]*\w)", guide))
    made = {"deploy/compose/tls"}  # by the reader
    assert [path for path in named - made if not (ROOT / path).exists()] == []


def messages() -> set[str]:
    """Patterns for the parts of every sentence in the code, up to each colon or bracket; `.+` stands for values."""
    found = set()
    for path in (ROOT / "src" / "triton_sam").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in node.values]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = [re.escape(node.value)]
            else:
                continue
            found.update(re.split(r":\\ |\\ \\\(", "".join(parts)))
    return found


def test_messages_are_those_of_the_program() -> None:
    """Each is the beginning of a sentence, or all of its part before a colon or a bracket."""
    page = (ROOT / "docs" / "guides" / "fails.md").read_text()
    listed = page.partition("## The server does not start")[2].partition("\n## ")[0]
    quoted = [*re.findall(r"^- `(.*?)`: ", listed, re.MULTILINE), *re.findall(r"503 `([^`]+)`", page)]
    assert len(quoted) > 8
    known = messages()

    def is_known(text: str) -> bool:
        for pattern in known:
            if pattern.startswith(re.escape(text)):
                return True
            if 2 * len(pattern.replace(".+", "")) > len(text) and re.fullmatch(pattern, text):
                return True
        return False

    assert [text for text in quoted if not is_known(text)] == []


def test_the_states_of_health_are_explained() -> None:
    page = (ROOT / "docs" / "guides" / "fails.md").read_text().partition("## /health is 503")[2].partition("## ")[0]
    states = schemas.Health.model_fields["state"].description
    assert states is not None
    known = set(re.findall(r"\w+", states)) - {"or", "ready", "starting"}  # it listens when all models have loaded
    assert {"recovering", "failed"} <= known
    for state in known:
        assert f"`{state}`" in page


def test_carried_weights_are_checked(tmp_path: Path) -> None:
    """The commands of air_gapped.md, on files with the names that a download gives them."""
    block = next(
        code
        for code in re.findall(r"```bash\n(.*?)```", (ROOT / "docs/guides/air_gapped.md").read_text(), re.DOTALL)
        if "sha256sum --check" in code and "blobs" in code
    )
    blobs = tmp_path / "home" / "blobs"
    blobs.mkdir(parents=True)
    first, second = b"first", b"second"
    named = blobs / f"{sha256(first).hexdigest()}.onnx"
    sourced = blobs / "source-model.pt"
    named.write_bytes(first)
    sourced.write_bytes(second)
    (blobs / "source-model.pt.sha256").write_text(f"{sha256(second).hexdigest()} of the source\n")

    def check() -> str:
        done = subprocess.run(
            ["bash", "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout

    assert check().splitlines() == [f"{named.name}: OK", f"{sourced.name}: OK"]
    for file in (named, sourced):
        file.write_bytes(b"damaged")
    assert check().splitlines() == [f"{named.name}: FAILED", f"{sourced.name}: FAILED"]


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
