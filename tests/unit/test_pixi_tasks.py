"""The pixi tasks of pyproject.toml name commands that exist, with options that they know."""

from __future__ import annotations

import logging
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from triton_sam.cli import app
from triton_sam.models.catalog import resolve_ids

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MANIFEST: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PIXI: dict[str, Any] = MANIFEST["tool"]["pixi"]
TASKS: dict[str, str] = PIXI["tasks"]
REQUIRED = [
    "setup",
    "setup-all",
    "setup-sam1",
    "setup-sam2",
    "setup-sam3",
    "download-sam1",
    "download-sam2",
    "download-sam3",
    "download-sam3-onnx",
    "export-sam1",
    "export-sam2",
    "export-sam3",
    "export-onnx",
    "serve",
    "test",
    "test-sam2",
    "test-sam3",
    "test-speculative",
    "benchmark-sam2",
    "benchmark-sam3",
]
#: pytest's own words are not ours to try.
COMMANDS = sorted({command for command in TASKS.values() if "pytest" not in command})


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """The command line sets logging up; here it stays as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_every_task_is_there() -> None:
    assert sorted(TASKS) == sorted(REQUIRED)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists_and_knows_its_options(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--help`` stands behind the task's own words, so that a command line with options looks at those too."""
    program, *words = [*shlex.split(command), "--help"]
    if program == "triton-sam":
        done = CliRunner().invoke(app.app, words)
        code, output = done.exit_code, done.output
    elif program == "python":
        monkeypatch.setattr(sys, "argv", words)
        monkeypatch.syspath_prepend(str(ROOT / "scripts"))  # where Python itself would look first
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        code, output = ended.value.code or 0, capsys.readouterr().out  # type: ignore[assignment]
    else:
        finished = subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
        code, output = finished.returncode, finished.stdout
    assert code == 0, output
    assert "usage" in output.lower()


@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith(("setup", "benchmark"))])
def test_tasks_name_models_that_exist(name: str) -> None:
    model = shlex.split(TASKS[name])[-1]
    assert resolve_ids([model])
    assert name in ("setup", f"{name.partition('-')[0]}-{model}")


def test_extras_are_those_of_the_project() -> None:
    package = PIXI["pypi-dependencies"][MANIFEST["project"]["name"]]
    extras = MANIFEST["project"]["optional-dependencies"]
    assert (package["path"], package["editable"]) == (".", True)
    assert set(package["extras"]) <= set(extras)
    assert "dev" in package["extras"]
    assert "export" in package["extras"] or "export" not in extras


def test_glibc_is_the_one_that_the_servers_wheel_needs() -> None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        wheel = distribution("nvidia-pytriton").read_text("WHEEL") or ""
    except PackageNotFoundError:
        pytest.skip("the embedded server is not installed")
    found = re.search(r"manylinux_(\d+)_(\d+)_(?:x86_64|aarch64)", wheel)
    assert found is not None
    assert PIXI["system-requirements"]["libc"] == f"{found[1]}.{found[2]}"


def test_the_wheel_has_the_older_names_too() -> None:
    packages = MANIFEST["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(packages) == ["src/triton_client", "src/triton_sam", "src/triton_sam2"]
