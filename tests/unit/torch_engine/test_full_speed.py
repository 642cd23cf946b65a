"""A small engine on a CPU that switches to other code while it serves."""

from __future__ import annotations

import copy
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.unit.engines.test_onnx import prompt
from tests.unit.export.small import small_network, small_spec
from tests.unit.torch_engine.test_compile_process import NICENESS
from tests.unit.torch_engine.test_engine import close, logits_of, photograph
from triton_sam.engines.base import Row
from triton_sam.engines.readiness import Stage
from triton_sam.engines.torch import compiling, decoding, encoding
from triton_sam.engines.torch.compiled_steps import load_compiled
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import TorchOptions

pytestmark = pytest.mark.torch
SPEC = small_spec("sam2.1:tiny")
NETWORK = small_network(SPEC)
STEPS = ("encoder-1", "decoder-1", "encoder-2")
#: In place of the process that compiles.
WRITER = """
import json, sys
from pathlib import Path
from triton_sam.engines.torch.code_folder import CodeFolder

request = json.loads(sys.stdin.readline())
folder = CodeFolder(Path(request["root"]), request["key"])
for step in request["steps"]:
    with folder.writing(step) as new:
        (new / "step").write_text(step)
    print(step, flush=True)
"""


class Loaded:
    """Stands for compiled code: the module itself, counted, or something wrong."""

    def __init__(self, wrong: str = "") -> None:
        self.calls: dict[str, int] = {}
        self._wrong = wrong

    def load(self, folder: Path, module: nn.Module, device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
        step = (folder / "step").read_text()

        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            self.calls[step] = self.calls.get(step, 0) + 1
            first, *others = module(*inputs)
            return (first * (2 if step == self._wrong else 1), *others)

        return run


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Loaded], TorchEngine]]:
    """Starts an engine that compiles with the code of another kind."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored afterwards: an engine sets both
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setattr(compiling, "NICENESS", NICENESS)
    plain = compiling.Compilation.__init__
    monkeypatch.setattr(compiling.Compilation, "__init__", lambda *given: plain(*given, program=("-c", WRITER)))
    made: list[TorchEngine] = []

    def start(loaded: Loaded) -> TorchEngine:
        for module in (encoding, decoding):
            monkeypatch.setattr(module, "load_compiled", loaded.load)
        options = TorchOptions(torch.device("cpu"), compile_mode="default", encode_batch=2)
        engine = TorchEngine(SPEC, copy.deepcopy(NETWORK), options)
        engine.warm_up()
        assert engine.readiness.stage is Stage.FULL_SPEED  # nothing is to come yet
        engine.speed_up(tmp_path / "compiled")
        made.append(engine)
        return engine

    yield start
    for engine in made:
        engine.close()
        assert engine.compilation is not None
        assert engine.compilation.wait(60)


def answers(engine: TorchEngine, count: int) -> list[Any]:
    files = [photograph((120, 80), seed) for seed in range(count)]
    embeddings = engine.encode([engine.prepare(file) for file in files])
    return [logits_of(each) for each in engine.decode([Row(each, prompt([[30, 40]])) for each in embeddings])]


def test_every_answer_is_right_before_during_and_after(started: Callable[[Loaded], TorchEngine]) -> None:
    loaded = Loaded()
    plain = TorchEngine(SPEC, copy.deepcopy(NETWORK), TorchOptions(torch.device("cpu"), encode_batch=2))
    plain.warm_up()
    expected = answers(plain, 2)
    engine = started(loaded)
    found: list[list[Any]] = []
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            found.append(answers(engine, 1 + len(found) % 2))

    thread = threading.Thread(target=serve)
    thread.start()
    assert engine.compilation is not None
    assert engine.compilation.wait(60)
    over.set()
    thread.join()
    assert engine.readiness.stage is Stage.FULL_SPEED
    assert set(loaded.calls) == set(STEPS)
    before = dict(loaded.calls)
    found += [answers(engine, 1), answers(engine, 2)]
    # One row is decoded by the compiled step, two together by another one.
    assert {step: loaded.calls[step] - before[step] for step in STEPS} == {
        "encoder-1": 1,
        "encoder-2": 1,
        "decoder-1": 1,
    }
    for each in found:
        for one, other in zip(each, expected, strict=False):
            close(one, other, 1e-4)


@pytest.mark.parametrize("wrong", STEPS)
def test_code_that_gives_something_else_is_never_used(wrong: str, started: Callable[[Loaded], TorchEngine]) -> None:
    loaded = Loaded(wrong)
    engine = started(loaded)
    assert engine.compilation is not None
    assert engine.compilation.wait(60)
    assert engine.readiness.stage is Stage.UNCOMPILED
    assert "gives other" in engine.readiness.detail
    tried = loaded.calls[wrong]
    answers(engine, 1)
    answers(engine, 2)
    assert loaded.calls[wrong] == tried


def test_the_next_start_uses_what_was_kept(started: Callable[[Loaded], TorchEngine]) -> None:
    for start in range(2):
        engine = started(Loaded())
        assert engine.compilation is not None
        assert engine.compilation.wait(60)
        assert engine.readiness.stage is Stage.FULL_SPEED
        assert (engine.compilation._process is None) == bool(start), "only the first one compiles"
    assert np.isfinite(answers(engine, 1)[0]).all()


def test_a_folder_that_cannot_be_private(
    tmp_path: Path, started: Callable[[Loaded], TorchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code is kept in a temporary folder as long as the engine is in use."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (tmp_path / "compiled").symlink_to(tmp_path)
    engine = started(Loaded())
    assert engine.compilation is not None
    assert engine.compilation.wait(60)
    assert engine.readiness.stage is Stage.FULL_SPEED
    assert [path.name for path in temporary.glob("*/compiled/*/encoder-1")] == ["encoder-1"]
    engine.close()
    assert not list(temporary.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"compiled", "temporary"}


def test_what_is_not_there_does_not_load(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_compiled(tmp_path, nn.Linear(1, 1), torch.device("cpu"))
