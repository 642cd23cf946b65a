"""The unit of docs/start/gpu.md: what systemd itself says of it, and the line that it starts."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from triton_sam.settings import Settings

pytestmark = pytest.mark.part("deploy")

UNIT = Path(__file__).resolve().parents[3] / "deploy" / "systemd" / "triton-sam.service"


VARIABLES = UNIT.with_name("environment")


def settings() -> dict[str, str]:
    lines = [line for line in UNIT.read_text().splitlines() if line and line[0] not in "#["]
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def analyse() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is not installed: it is in Debian's package systemd")
    return found


def test_systemd_finds_no_fault(analyse: str, tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text())
    done = subprocess.run([analyse, "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60)
    faults = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert faults == []
    assert done.returncode == 0


def test_systemd_rates_it_as_well_protected(analyse: str, tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text())
    words = [analyse, "security", "--offline=true", "--threshold=30", "--no-pager", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a unit offline: version 250 can")
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.parametrize(("token", "starts"), [("a secret\n", True), ("", False), (None, False)])
def test_it_starts_with_its_token_or_not_at_all(token: str | None, starts: bool, tmp_path: Path) -> None:
    program = tmp_path / "triton-sam"
    program.write_text('#!/bin/sh\necho "$TRITON_SAM_TOKEN|$*"\n')
    program.chmod(0o755)
    if token is not None:
        (tmp_path / "token").write_text(token)
    line = settings()["ExecStart"].replace("$$", "$").replace("/opt/triton-sam/bin/triton-sam", str(program))
    environment = {"PATH": "/usr/bin:/bin", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    done = subprocess.run(shlex.split(line), env=environment, capture_output=True, text=True, check=False, timeout=30)
    if starts:
        assert done.stdout == "a secret|serve --host 127.0.0.1\n"
    else:
        assert done.returncode != 0
        assert done.stdout == ""


def test_what_it_promises() -> None:
    unit = settings()
    assert unit["User"] == "triton-sam"
    assert unit["NoNewPrivileges"] == unit["PrivateTmp"] == "yes"
    assert unit["ProtectSystem"] == "strict"
    assert unit["CapabilityBoundingSet"] == ""
    assert not re.search(r"TOKEN=\S*[A-Za-z0-9]{8}", UNIT.read_text()), "a token must not stand in a unit"


def test_the_file_of_settings_names_settings_and_how_to_choose_gpus() -> None:
    """With each line that is only proposed, as a user turns it on."""
    lines = re.findall(r"^#?([A-Z_]+)=(\S+)$", VARIABLES.read_text(), re.MULTILINE)
    given = {name.removeprefix("TRITON_SAM_").lower(): value for name, value in lines}
    assert given.pop("cuda_visible_devices") == given["devices"] == "0,1"
    assert {"devices", "processes", "service_processes", "cache_bytes"} == set(given) <= set(Settings.model_fields)
    Settings.model_validate(given)
    assert settings()["EnvironmentFile"] == "-/etc/triton-sam/environment"
    assert int(settings()["TasksMax"]) >= 16384
