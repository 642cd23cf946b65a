"""An engine that serves uncompiled and is brought to full speed: the order of things, and what fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.export.small import small_spec
from tests.unit.torch_engine.test_compile_process import NICENESS
from triton_sam.engines.readiness import Stage
from triton_sam.engines.torch import compiling
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.engines.torch.compile_process import CompileRequest, compile_missing
from triton_sam.engines.torch.compiling import Compilation
from triton_sam.errors import Unavailable

pytestmark = pytest.mark.torch
STEPS = ("encoder-1", "decoder", "encoder-2")
SECONDS = 60

#: In place of the process that compiles: writes what it is asked for.
OBEDIENT = """
import json, os, sys
from pathlib import Path
from triton_sam.engines.torch.code_folder import CodeFolder

request = json.loads(sys.stdin.readline())
folder = CodeFolder(Path(request["root"]), request["key"])
for step in request["steps"]:
    with folder.writing(step) as new:
        (new / "code.bin").write_text("new")
    print(step, flush=True)
"""
#: Manages one step.
FAILING = OBEDIENT.replace("print(step, flush=True)", "print(step, flush=True); sys.exit('no compiler\\nis here')")
DEAD = "import os; os._exit(3)"


class Engine:
    """Remembers which step was replaced by what."""

    def __init__(self) -> None:
        self.used: dict[str, list[str]] = {step: [] for step in STEPS}
        self.refused: set[tuple[str, str]] = set()
        self.error: Exception = RuntimeError("it gives other masks")

    def switch(self, step: str) -> Callable[[Path], None]:
        def use(folder: Path) -> None:
            code = (folder / "code.bin").read_text()
            if (step, code) in self.refused:
                raise self.error
            self.used[step].append(code)

        return use


def compilation(folder: CodeFolder, engine: Engine, script: str = OBEDIENT) -> Compilation:
    spec = small_spec("sam2.1:tiny")
    request = CompileRequest(
        spec.architecture, spec.graphs, None, "cpu", "float32", "float32", "default", (), folder.root, folder.key
    )
    switches = {step: engine.switch(step) for step in STEPS}
    return Compilation("a model", folder, request, switches, time.perf_counter(), ("-c", script))


def run(folder: CodeFolder, engine: Engine, script: str = OBEDIENT) -> Compilation:
    made = compilation(folder, engine, script)
    assert made.readiness.stage is Stage.UNCOMPILED
    made.start()
    assert made.wait(SECONDS)
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CodeFolder:
    monkeypatch.setattr(compiling, "NICENESS", NICENESS)
    return CodeFolder(tmp_path / "compiled", {"gpu": "one"})


def keep(folder: CodeFolder, *steps: str) -> None:
    for step in steps:
        with folder.lock(), folder.writing(step) as new:
            (new / "code.bin").write_text("kept")


def test_a_first_start_compiles_in_another_process(folder: CodeFolder, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    with caplog.at_level(logging.INFO, logger=compiling.__name__):
        made = run(folder, engine)
    assert made.readiness.stage is Stage.FULL_SPEED
    assert made.readiness.detail == ""
    assert list(engine.used.values()) == [["new"]] * 3
    told = [record.message.partition(" after")[0] for record in caplog.records]
    assert told == [
        "a model serves uncompiled",
        "a model serves uncompiled, another process compiles encoder-1, decoder, encoder-2",
        "a model is at full speed",
    ]


def test_a_second_start_compiles_nothing(folder: CodeFolder) -> None:
    keep(folder, *STEPS)
    engine = Engine()
    assert run(folder, engine, DEAD).readiness.stage is Stage.FULL_SPEED
    assert list(engine.used.values()) == [["kept"]] * 3


def test_only_what_is_missing_or_damaged_is_compiled(folder: CodeFolder) -> None:
    keep(folder, "encoder-1", "decoder")
    engine = Engine()
    engine.refused.add(("decoder", "kept"))
    assert run(folder, engine).readiness.stage is Stage.FULL_SPEED
    assert engine.used == {"encoder-1": ["kept"], "decoder": ["new"], "encoder-2": ["new"]}


def test_code_for_which_there_is_no_memory_now_is_kept(folder: CodeFolder) -> None:
    keep(folder, *STEPS)
    engine = Engine()
    engine.refused.add(("decoder", "kept"))
    engine.error = Unavailable("no memory is left")
    made = run(folder, engine, DEAD)
    assert (made.readiness.stage, made.readiness.detail) == (Stage.UNCOMPILED, "no memory is left")
    assert folder.find("decoder") is not None


@pytest.mark.parametrize(("script", "told"), [(FAILING, "is here"), (DEAD, "failed")])
def test_if_it_fails_it_serves_on_and_warns_once(
    folder: CodeFolder, script: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    made = run(folder, engine, script)
    assert made.readiness.stage is Stage.UNCOMPILED
    assert told in made.readiness.detail
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "a model serves on uncompiled, and slower: compiling" in warning.message
    assert engine.used["encoder-1"] == (["new"] if script == FAILING else [])
    assert engine.used["encoder-2"] == []


def test_new_code_that_is_wrong_is_not_used(folder: CodeFolder, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    engine.refused.add(("decoder", "new"))
    made = run(folder, engine)
    assert made.readiness.detail == "it gives other masks"
    assert engine.used["decoder"] == []
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_without_a_python_that_could_compile(folder: CodeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.sys, "executable", "/triton_python_backend_stub")
    monkeypatch.setenv("PATH", "")
    assert "no python3 on PATH" in run(folder, Engine()).readiness.detail


def test_it_can_be_stopped(folder: CodeFolder, caplog: pytest.LogCaptureFixture) -> None:
    made = compilation(folder, Engine(), "import sys; sys.stdin.read(); print('x' * 0, flush=True); sys.stdin.read()")
    made.stop()
    made.start()
    assert made.wait(SECONDS)
    assert made.readiness.stage is Stage.UNCOMPILED
    assert "WARNING" not in caplog.text


def test_what_another_process_has_compiled_meanwhile_is_not_compiled_again(folder: CodeFolder) -> None:
    keep(folder, *STEPS)
    spec = small_spec("sam2.1:tiny")
    request = CompileRequest(
        spec.architecture, spec.graphs, None, "cpu", "float32", "float32", "default", STEPS, folder.root, folder.key
    )
    done: list[str] = []
    compile_missing(request, folder, done.append)
    assert done == list(STEPS)
