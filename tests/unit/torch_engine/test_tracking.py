"""Tracking by the torch engine: rows of every kind in one call, memories outside the device, and compiled steps.

That it tracks what is defined is tested for all engines in tests/unit/video.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.unit.torch_engine.test_engine import CPU
from tests.video_models import VideoModel, allow_small_sides, make_video_model
from triton_sam.core.geometry import Frame
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.core.video.bank import Attended
from triton_sam.engines.base import Embedding
from triton_sam.engines.torch import compiled_steps, tracking
from triton_sam.engines.torch import engine as engine_module
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.engines.torch.compile_process import TRACKING, TRACKING_KERNELS, CompileRequest, compile_missing
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.loading import load_torch_engine
from triton_sam.engines.torch.tracking import TrackRunner
from triton_sam.engines.torch.tracking_step import TrackShape
from triton_sam.engines.tracking import HostMemory, Remember, Tracked, TrackRow
from triton_sam.errors import SetupError
from triton_sam.models.specs import NETWORK_FILE
from triton_sam.networks.segmenters import build_layers
from triton_sam.settings import Settings

pytestmark = pytest.mark.torch

SIZE = (90, 70)
CLICK = ObjectPrompt(np.array([[30.0, 40.0]], np.float32), np.ones(1, np.int32))
CLICKS = ObjectPrompt(np.array([[30.0, 40.0], [60.0, 20.0]], np.float32), np.array([1, 0], np.int32))


@pytest.fixture(scope="module")
def model() -> Iterator[VideoModel]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        allow_small_sides(monkeypatch)
        yield make_video_model("sam2.1:tiny")


@pytest.fixture
def engine(model: VideoModel) -> TorchEngine:
    return made(model)


def made(model: VideoModel) -> TorchEngine:
    return TorchEngine(model.spec, model.network, CPU)


def images(engine: TorchEngine, count: int) -> list[Embedding]:
    rng = np.random.default_rng(0)
    frame = Frame(*SIZE, engine.spec.side, engine.spec.resize)
    shapes = engine.spec.encoder.outputs
    return [
        engine.adopt(frame, {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes})
        for _ in range(count)
    ]


def remembered(engine: TorchEngine, seen: list[Embedding]) -> list[Tracked]:
    return engine.track([TrackRow(image, prompt=CLICK, remember=Remember.HARD) for image in seen])


def attended(known: list[Tracked], memories: int, pointers: int) -> Attended:
    """So many of what is known, again and again."""
    return Attended(
        tuple((known[index % len(known)].features, index % 7) for index in range(memories)),
        tuple((known[index % len(known)].pointer, index) for index in range(pointers)),
        15,
    )


def same(one: Tracked, other: Tracked) -> None:
    for mine, its in zip(numbers(one), numbers(other), strict=True):
        assert np.abs(mine - its).max() <= 1e-4 * max(1.0, its.std())


def numbers(one: Tracked) -> list[Any]:
    logits, features = one.decoded.logits, one.features.float().numpy()
    return [logits, one.decoded.scores, np.array(one.appearance), features, one.pointer.numpy()]


def test_rows_of_every_kind_are_each_as_alone(engine: TorchEngine) -> None:
    assert engine.tracker is not None
    engine.tracker._step.kept_in = torch.float32
    seen = images(engine, 3)
    known = remembered(engine, seen)
    mask = np.zeros(SIZE[::-1], bool)
    mask[10:40, 20:60] = True
    side = engine.spec.decoder.mask_side
    previous = np.linspace(-50, 50, side * side, dtype=np.float32).reshape(side, side)
    rows = [
        TrackRow(seen[0], attended(known, 7, 16)),
        TrackRow(seen[1], attended(known, 2, 1), pixels=True),
        TrackRow(seen[0], prompt=CLICKS, remember=Remember.HARD),
        TrackRow(seen[2], attended(known, 3, 3), CLICK, previous),
        TrackRow(seen[1], mask=mask, remember=Remember.HARD, pixels=True),
        TrackRow(seen[1], mask=np.zeros_like(mask), remember=Remember.HARD),
        TrackRow(seen[2], attended(known, 13, 22)),
        *[TrackRow(seen[index % 3], attended(known, 1 + index % 7, index)) for index in range(18)],
    ]
    for row, found in zip(rows, engine.track(rows), strict=True):
        assert (found.decoded.packed is not None) == row.pixels
        same(found, engine.track([row])[0])


def test_more_memories_than_slots(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.tracker is not None
    engine.tracker._step.kept_in = torch.float32
    seen = images(engine, 2)
    known = remembered(engine, seen)
    row = TrackRow(seen[1], attended(known, 5, 6))
    (expected,) = engine.track([row])
    for name, value in (("SLOTS", 2), ("POINTERS", 2), ("MORE_SLOTS", 3), ("MORE_POINTERS", 4)):
        monkeypatch.setattr(tracking, name, value)
    assert engine.tracker is not None
    engine.tracker._full = engine.tracker._inputs(TrackShape(4, 3, 4, 20))
    same(engine.track([row])[0], expected)


def test_a_result_is_not_overwritten_by_the_next(engine: TorchEngine) -> None:
    seen = images(engine, 2)
    (first,) = engine.track([TrackRow(seen[0], prompt=CLICK, pixels=True)])
    before = [array.copy() for array in numbers(first)]
    engine.track([TrackRow(seen[1], prompt=CLICKS, pixels=True)])
    assert all(np.array_equal(now, then) for now, then in zip(numbers(first), before, strict=True))


def test_memories_are_rounded_once_and_come_back_from_the_host_as_they_were(engine: TorchEngine) -> None:
    assert engine.tracker is not None
    (image,) = images(engine, 1)
    (kept,) = remembered(engine, [image])
    engine.tracker._step.kept_in = torch.float32
    (exact,) = remembered(engine, [image])
    engine.tracker._step.kept_in = torch.bfloat16
    assert kept.features.dtype is torch.bfloat16
    assert torch.equal(kept.features, exact.features.to(torch.bfloat16))
    bare, (bits, pointer), _ = engine.memories_to_host(
        [(None, kept.pointer), (kept.features, kept.pointer), (kept.features, kept.pointer)]
    )
    assert bare.features is None
    assert bits is not None
    assert bits.shape == engine.memory_shape()
    assert bits.nbytes == engine.memory_bytes
    channels_first = exact.features.T.reshape(bits.shape).to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(bits, channels_first.view(np.uint16))
    features, back = engine.memory_from_host(HostMemory(bits, pointer))
    assert torch.equal(features, kept.features)
    assert torch.equal(back, kept.pointer)
    assert engine.memory_from_host(bare)[0] is None


def test_an_engine_without_a_memory_does_not_track(model: VideoModel) -> None:
    spec = dataclasses.replace(model.spec, memory=None)
    assert not TorchEngine(spec, model.network, CPU).capacity.tracks
    assert made(model).capacity.tracks


def test_loading(model: VideoModel, tmp_path: Path) -> None:
    settings = Settings(device="cpu", engine="torch", torch_compile="off", video_bytes=12_345_678)
    file = tmp_path / NETWORK_FILE
    save_file({name: one.contiguous() for name, one in model.weights.items()}, file)
    loaded = load_torch_engine(model.spec, file, settings)
    assert loaded.capacity.tracks
    assert loaded.capacity.video_bytes == 12_345_678
    plain = load_torch_engine(dataclasses.replace(model.spec, memory=None), file, settings)
    assert plain.capacity.video_bytes is None
    names = build_layers(model.spec.architecture, model.spec.side).state_dict()
    save_file({name: model.weights[name].contiguous() for name in names}, file)
    with pytest.raises(SetupError, match="has no memory for videos"):
        load_torch_engine(model.spec, file, settings)


@pytest.mark.parametrize(("wrong", "used"), [(0.0, True), (0.2, False)])
def test_compiled_code_is_used_if_it_is_right(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: float, used: bool
) -> None:
    assert engine.tracker is not None
    calls = []

    def load(_folder: Path, module: nn.Module, _device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            calls.append(len(inputs[0]))
            logits, facts, pointers, memories = module(*inputs)
            return logits, facts, pointers, memories * (1 + wrong)

        return run

    monkeypatch.setattr(tracking, "load_compiled", load)
    if not used:
        with pytest.raises(SetupError, match="remembers something else"):
            engine.tracker.use_compiled(2, tmp_path)
        return
    engine.tracker.use_compiled(2, tmp_path)
    calls.clear()
    seen = images(engine, 2)
    known = remembered(engine, seen)
    engine.track([TrackRow(image, attended(known, 2, 2)) for image in seen])
    assert calls == [2]


def test_the_process_compiles_what_the_engine_runs(
    model: VideoModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec, modules = model.spec, []

    def compile_module(module: nn.Module, inputs: tuple[Tensor, ...], _mode: str, _folder: Path) -> None:
        modules.append(module)
        outputs = module(*inputs)
        assert [len(one) for one in (*inputs, *outputs)] == [3] * 8

    monkeypatch.setattr(compiled_steps, "compile_module", compile_module)
    root = tmp_path / "compiled"
    request = CompileRequest(
        spec.architecture, spec.graphs, spec.memory, "cpu", "float32", "float32", "default", (f"{TRACKING}3",), root, {}
    )
    compile_missing(request, CodeFolder(root, {}), lambda _: None)
    (compiled,) = modules
    engine = made(model)
    assert engine.tracker is not None
    theirs, mine = compiled.state_dict(), engine.tracker._step.state_dict()
    assert {name: one.shape for name, one in theirs.items()} == {name: one.shape for name, one in mine.items()}


def test_tracking_is_brought_to_full_speed_last(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Any] = []

    class Recorder:
        def __init__(self, *what: Any) -> None:
            given.extend(what)

        def start(self) -> None: ...

        def stop(self) -> None: ...

        def wait(self, _seconds: float) -> bool:
            return True

    used: list[Any] = []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored afterwards: an engine sets both
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setattr(engine_module, "Compilation", Recorder)
    monkeypatch.setattr(TrackRunner, "worth_compiling", (1, 2))
    monkeypatch.setattr(TrackRunner, "use_kernels", lambda _: used.append("kernels"))
    monkeypatch.setattr(TrackRunner, "use_compiled", lambda _, count, folder: used.append((count, folder)))
    engine.speed_up(tmp_path / "compiled")
    engine.close()
    _, _, request, switches, _ = given
    assert list(switches)[-3:] == [TRACKING_KERNELS, f"{TRACKING}1", f"{TRACKING}2"]
    for step in list(switches)[-3:]:
        switches[step](tmp_path)
    assert used == ["kernels", (1, tmp_path), (2, tmp_path)]
    read = TypeAdapter(CompileRequest).validate_json(request.to_line())
    assert read.memory == request.memory == engine.spec.memory
