"""The bookkeeping of processes and versions; the real server is started by the integration tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from triton_sam.errors import ServerError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.repository.configs import config_text, segmenter_config
from triton_sam.repository.model_folders import ModelState
from triton_sam.server import host
from triton_sam.server import process as process_module
from triton_sam.server.command import ServerOptions, command_line, further_flags
from triton_sam.server.in_flight import IN_FLIGHT_DIR_VARIABLE, VLM_DIR_VARIABLE
from triton_sam.server.process import TritonProcess

PINNED = ModelState(1, config_text(segmenter_config(get_spec(DEFAULT_MODEL), "sam2")))


class Triton:
    """The other side: stubs as /proc shows them, and what a control call does."""

    def __init__(self) -> None:
        self.model_pids = {11: "sam2_0_0", 12: "sam2.1_large_0_0"}
        self.next_pid = 20
        self.failure: Exception | None = None
        self.lazy = False
        self.calls: list[tuple[str, str, dict[str, str]]] = []
        self.during: dict[str, dict[int, str]] = {}

    def control(self, process: TritonProcess, call: str, model: str, **options: str) -> None:
        self.calls.append((call, model, options))
        self.during = {"model_pids": dict(process.model_pids), "retiring": dict(process.retiring)}
        if self.failure is not None:
            raise self.failure
        if call == "load_model" and not self.lazy:
            self.model_pids[self.next_pid] = f"{model}_0_0"
            self.next_pid += 1

    def model_processes(self, _: TritonProcess) -> Iterator[tuple[list[str], int]]:
        for pid, instance in self.model_pids.items():
            yield [""] * 8 + [instance], pid


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Triton:
    made = Triton()
    monkeypatch.setattr(TritonProcess, "_control", lambda *words, **options: made.control(*words, **options))
    monkeypatch.setattr(TritonProcess, "_own_model_processes", lambda process: made.model_processes(process))
    return made


@pytest.fixture
def process(triton: Triton, tmp_path: Path) -> TritonProcess:
    popen: Any = None
    options = ServerOptions(tmp_path, ("sam2", "sam2.1_large"), tmp_path)
    made = TritonProcess(options, popen, tmp_path, tmp_path / "log", "prefix", "key", set(options.models))
    made.find_model_pids()
    assert made.model_pids == {11: "sam2", 12: "sam2.1_large"}
    return made


def test_a_newer_version_takes_over(process: TritonProcess, triton: Triton) -> None:
    process.load("sam2")
    assert triton.during == {"model_pids": {12: "sam2.1_large"}, "retiring": {11: "sam2"}}, (
        "its end is expected from now on"
    )
    assert process.model_pids == {20: "sam2", 12: "sam2.1_large"}
    assert process.retiring == {11: "sam2"}
    process.find_model_pids()
    assert process.model_pids == {20: "sam2", 12: "sam2.1_large"}
    process.forget_retired([11])
    assert process.retiring == {}


def test_the_old_process_may_be_gone_before_the_load_returns(process: TritonProcess, triton: Triton) -> None:
    del triton.model_pids[11]
    process.load("sam2")
    assert process.model_pids == {20: "sam2", 12: "sam2.1_large"}


def test_a_load_that_fails_leaves_the_old_process_in_charge(process: TritonProcess, triton: Triton) -> None:
    triton.failure = ServerError("broken")
    with pytest.raises(ServerError, match="broken"):
        process.load("sam2")
    assert process.model_pids == {11: "sam2", 12: "sam2.1_large"}
    assert process.retiring == {}


def test_even_one_that_died_and_was_forgotten_meanwhile(process: TritonProcess, triton: Triton) -> None:
    class Broken(ServerError):
        def __init__(self) -> None:
            process.forget_retired([11])

    monkey = triton.control

    def control(*words: Any, **options: str) -> None:
        triton.failure = Broken()
        monkey(*words, **options)

    triton.control = control  # type: ignore[method-assign]
    with pytest.raises(Broken):
        process.load("sam2")
    assert 11 in process.model_pids, "the supervisor finds it dead and recovers"


def test_a_load_with_nothing_new(process: TritonProcess, triton: Triton) -> None:
    triton.lazy = True
    process.load("sam2")
    assert process.model_pids == {11: "sam2", 12: "sam2.1_large"}
    assert process.retiring == {}


def test_an_unloaded_model_is_not_missed(process: TritonProcess, triton: Triton) -> None:
    process.unload("sam2")
    assert process.model_pids == {12: "sam2.1_large"}
    process.load("sam2")  # the old process is still about
    assert process.model_pids == {20: "sam2", 12: "sam2.1_large"}


def test_a_pinned_version_is_sent_with_its_config(process: TritonProcess, triton: Triton) -> None:
    process.load("sam2", PINNED)
    ((call, model, options),) = triton.calls
    assert (call, model) == ("load_model", "sam2")
    assert json.loads(options["config"])["version_policy"] == {"specific": {"versions": ["1"]}}


def rows(process: TritonProcess, monkeypatch: pytest.MonkeyPatch, *entries: dict[str, str]) -> None:
    monkeypatch.setattr(TritonProcess, "post", lambda *_, **__: list(entries))


def test_the_index_of_several_versions(process: TritonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(
        process,
        monkeypatch,
        {"name": "sam2", "version": "9", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "sam2", "version": "10", "state": "READY"},
        {"name": "sam2", "version": "11", "state": "UNAVAILABLE", "reason": "broken"},
        {"name": "sam1", "version": "9", "state": "READY"},
        {"name": "sam1", "version": "10", "state": "READY"},
        {"name": "other"},
    )
    assert process.index() == {"sam2": ("READY", ""), "sam1": ("READY", ""), "other": ("", "")}
    assert process.versions() == {"sam2": "10", "sam1": "10"}


def test_pinned_models_are_loaded_when_the_server_is_there(
    triton: Triton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen: Any = type("Popen", (), {"poll": lambda _: None})()
    options = ServerOptions(tmp_path, ("sam2", "sam2.1_large"), tmp_path)
    made = TritonProcess(
        options, popen, tmp_path, tmp_path / "log", "prefix", "key", set(options.models), {"sam2": PINNED}
    )
    rows(made, monkeypatch, {"name": "sam2"}, {"name": "sam2.1_large", "version": "1", "state": "READY"})
    del triton.model_pids[11]
    made.wait_ready()
    assert [(call, model) for call, model, _ in triton.calls] == [("load_model", "sam2")]
    assert made.model_pids == {12: "sam2.1_large", 20: "sam2"}


def test_what_does_not_load_hinders_only_itself(
    triton: Triton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen: Any = type("Popen", (), {"poll": lambda _: None})()
    options = ServerOptions(tmp_path, ("sam1", "sam2"), tmp_path)
    made = TritonProcess(options, popen, tmp_path, tmp_path / "log", "prefix", "key", set(options.models))
    broken = {"name": "sam2", "version": "1", "state": "UNAVAILABLE", "reason": "decoder.onnx\ndoes not load"}
    rows(made, monkeypatch, broken, {"name": "sam1", "version": "1", "state": "READY"}, {"name": "stray"})
    made.wait_ready()
    assert made.failed == {"sam2": "decoder.onnx does not load"}
    rows(made, monkeypatch, broken, broken | {"name": "sam1"})
    with pytest.raises(ServerError, match=r"the model sam1 does not load: decoder\.onnx does not load"):
        made.wait_ready()


def test_a_door_without_its_model_is_nothing_to_serve(
    triton: Triton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen: Any = type("Popen", (), {"poll": lambda _: None})()
    options = ServerOptions(tmp_path, ("llava", "llava_stream"), tmp_path, needed=("llava_stream",))
    made = TritonProcess(options, popen, tmp_path, tmp_path / "log", "prefix", "key", set(options.models))
    broken = {"name": "llava_stream", "version": "1", "state": "UNAVAILABLE", "reason": "no memory"}
    rows(made, monkeypatch, broken, {"name": "llava", "version": "1", "state": "READY"})
    with pytest.raises(ServerError, match="the model llava_stream does not load: no memory"):
        made.wait_ready()


def test_the_servers_processes_have_folders_to_agree_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there before the first process looks, and are told to all of them."""
    told: dict[str, str] = {}
    files = host.TritonFiles(tmp_path / "tritonserver", tmp_path / "python", tmp_path / "stub")
    monkeypatch.setattr(host, "find_triton", lambda _installation: files)
    monkeypatch.setattr(host, "find_libpython", lambda: tmp_path / "libpython.so")
    for check in ("check_numpy", "check_runtime", "check_shared_memory"):
        monkeypatch.setattr(host, check, lambda: None)
    for step in ("check_port", "install_stub", "sweep_shared_memory"):
        monkeypatch.setattr(host, step, lambda *_: None)
    monkeypatch.setattr(process_module, "spawn", lambda _command, environment, _output: told.update(environment))
    (tmp_path / "models" / "sam2").mkdir(parents=True)
    (tmp_path / "models" / "sam2" / "config.pbtxt").touch()
    started = process_module.start(ServerOptions(tmp_path / "models", ("sam2",), tmp_path / "state"))
    for variable in (IN_FLIGHT_DIR_VARIABLE, VLM_DIR_VARIABLE):
        folder = Path(told[variable])
        assert folder.is_dir()
        assert folder.parent == started.runtime


def test_the_command_leaves_pinned_models_out(tmp_path: Path) -> None:
    files: Any = type("Files", (), {"binary": "tritonserver"})()
    options = ServerOptions(tmp_path, ("sam2", "other"), tmp_path)
    command = command_line(files, options, ["other"], tmp_path, "prefix", "key")
    assert [word for word in command if word.startswith("--load-model")] == ["--load-model=other"]


def test_triton_traces_only_what_comes_with_a_trace(tmp_path: Path) -> None:
    plain = ServerOptions(tmp_path, ("sam2",), tmp_path)
    assert further_flags(plain) == []
    flags = further_flags(replace(plain, traces_url="http://collector:4318/v1/traces"))
    assert "--trace-config=opentelemetry,url=http://collector:4318/v1/traces" in flags
    assert "--trace-config=count=0" in flags


def test_a_triton_without_traces_serves_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = host.TritonFiles(tmp_path / "tritonserver", tmp_path / "python", tmp_path / "stub")
    monkeypatch.setattr(host, "known_flags", lambda _binary, flags: [flag for flag in flags if "trace" not in flag])
    options = ServerOptions(tmp_path, ("sam2",), tmp_path, installation=tmp_path, traces_url="http://collector")
    assert process_module._known_further_flags(files, options) == [f"--http-max-input-size={options.max_request_bytes}"]
    assert "built without tracing" in caplog.text


def test_a_collector_that_is_gone_is_no_reason_of_an_end(process: TritonProcess) -> None:
    lost = "[Error] File: otlp_http_exporter.cc:122 [OTLP HTTP Client] ERROR: Export 2 trace span(s) error: 1"
    process.log_path.write_text(f'E1116 18:31:52.9 1 main.cc:1] "failed to bind"\n{lost}\n')
    assert process.last_error() == "failed to bind"


def test_bookkeeping_by_several_threads(process: TritonProcess, triton: Triton) -> None:
    threads = [threading.Thread(target=process.load, args=(name,)) for name in ("sam2", "sam2.1_large") * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not set(process.model_pids) & set(process.retiring)
