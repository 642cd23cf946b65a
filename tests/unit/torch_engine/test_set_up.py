"""From a checkpoint to a served torch engine, and what is done where that cannot run."""

from __future__ import annotations

import dataclasses
import io
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from tests.unit.export.small import small_network, small_spec
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines import loading
from triton_sam.engines.base import Engine, Row
from triton_sam.engines.loading import load_engine
from triton_sam.engines.onnx import OnnxEngine
from triton_sam.engines.torch import devices
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.errors import SetupError
from triton_sam.export.random_weights import save_as_folder
from triton_sam.models.specs import EngineChoice, ModelSpec
from triton_sam.models.weights import WeightStore
from triton_sam.repository import setup
from triton_sam.repository.export_cache import ExportRequest
from triton_sam.repository.model_folders import served_spec
from triton_sam.repository.segmenters import is_current, refresh
from triton_sam.repository.setup import SetupRequest, set_up, set_up_random
from triton_sam.settings import Settings

pytestmark = pytest.mark.torch


class Trained(NamedTuple):
    spec: ModelSpec
    network: Any
    folder: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    spec = small_spec("sam2.1:tiny")
    network = small_network(spec)
    return Trained(spec, network, save_as_folder(network, tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture(scope="module")
def both(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with ONNX graphs and the weights for torch."""
    home = tmp_path_factory.mktemp("both")
    request = ExportRequest(trained.folder, trained.spec.side)
    names = set_up(
        SetupRequest(trained.spec, WeightStore(home), home / "models", export=request, engine=EngineChoice.TORCH)
    )
    assert names == ["sam2", "sam2_encoder", "sam2_decoder"]
    return home / "models"


@pytest.fixture
def alone(trained: Trained, tmp_path: Path) -> Path:
    """A repository with the weights for torch alone."""
    request = ExportRequest(trained.folder, trained.spec.side)
    names = set_up(
        SetupRequest(
            trained.spec, WeightStore(tmp_path), tmp_path / "models", export=request, engine=EngineChoice.TORCH_ONLY
        )
    )
    assert names == ["sam2"]
    return tmp_path / "models"


def settings(**values: Any) -> Settings:
    return Settings(cache_bytes=10**9, **values)


def load(trained: Trained, repository: Path, **values: Any) -> Engine:
    folder = repository / "sam2" / "1"
    return load_engine(served_spec(trained.spec, folder), folder, settings(**values))


def picture() -> EncodedImage:
    noise = np.random.default_rng(2).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((180, 120)).save(buffer, "PNG")
    return EncodedImage(buffer.getvalue(), max_bytes=10**7, max_pixels=10**7)


def logits(engine: Engine) -> Any:
    point = ObjectPrompt(np.array([[50, 60]], np.float32), np.ones(1, np.int32))
    (embedding,) = engine.encode([engine.prepare(picture())])
    (answer,) = engine.decode([Row(embedding, point)])
    return answer.logits


@pytest.mark.parametrize("place", ["both", "alone"])
def test_the_weights_that_are_served_are_those_of_the_checkpoint(
    place: str, trained: Trained, request: pytest.FixtureRequest
) -> None:
    engine = load(trained, request.getfixturevalue(place), engine="torch", device="cpu")
    assert isinstance(engine, TorchEngine)
    direct = TorchEngine(trained.spec, trained.network, TorchOptions(torch.device("cpu")))
    direct.warm_up()
    assert np.allclose(logits(engine), logits(direct), atol=1e-5)
    assert engine.capacity.cache_bytes == 10**9


def test_without_a_gpu_the_graphs_beside_are_taken_and_it_is_said(
    trained: Trained, both: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger=loading.__name__):
        engine = load(trained, both)
    assert isinstance(engine, OnnxEngine)
    assert "runs on ONNX Runtime: torch sees no CUDA device here" in caplog.text
    assert load(trained, both, engine="onnx").spec.id == trained.spec.id


def test_without_a_gpu_and_without_graphs(trained: Trained, alone: Path) -> None:
    with pytest.raises(SetupError, match=r"no ONNX graphs, and torch cannot run it because torch sees"):
        load(trained, alone)


def test_torch_that_is_insisted_on(trained: Trained, both: Path) -> None:
    with pytest.raises(SetupError, match=r"TRITON_SAM_ENGINE=torch, but torch sees no CUDA device here"):
        load(trained, both, engine="torch")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_numbers_that_are_slow_here_are_warned_of(
    dtype: str, trained: Trained, alone: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(devices, "_product_seconds", lambda dtype: 0.3 if dtype is torch.float16 else 0.001)
    load(trained, alone, engine="torch", device="cpu", torch_dtype=dtype)
    told = "on this CPU float16 is about 300 times as slow as float32: set TRITON_SAM_TORCH_DTYPE=float32"
    assert (told in caplog.text) == (dtype == "float16")


def test_products_are_measured() -> None:
    assert 0.001 < devices.slowness(torch.float16, torch.device("cpu")) < 100_000
    assert devices.slowness(torch.float16, torch.device("cuda", 0)) == 1.0


def test_weights_that_do_not_fit(trained: Trained, alone: Path) -> None:
    wide = dataclasses.replace(trained.spec.architecture, depths=(1, 2, 3, 1))
    other = dataclasses.replace(trained.spec, architecture=wide)
    folder = alone / "sam2" / "1"
    with pytest.raises(SetupError, match=r"network\.safetensors of sam2\.1:tiny does not load"):
        load_engine(served_spec(other, folder), folder, settings(engine="torch", device="cpu"))


def test_a_model_for_torch_alone_is_known_again(trained: Trained, alone: Path) -> None:
    assert is_current(trained.spec, alone)
    (alone / "sam2" / "config.pbtxt").write_text((alone / "sam2" / "config.pbtxt").read_text().replace("count: 1", ""))
    assert not is_current(trained.spec, alone)
    assert refresh(trained.spec, alone)
    assert is_current(trained.spec, alone)
    assert sorted(path.name for path in alone.iterdir()) == ["sam2"]


def test_refreshing_keeps_the_weights_for_torch(trained: Trained, both: Path) -> None:
    assert refresh(trained.spec, both)
    assert (both / "sam2" / "1" / "network.safetensors").is_file()
    assert is_current(trained.spec, both)


def test_graphs_of_other_weights_go_when_torch_alone_comes(trained: Trained, both: Path, tmp_path: Path) -> None:
    import shutil

    models = tmp_path / "models"
    shutil.copytree(both, models)
    request = ExportRequest(trained.folder, trained.spec.side)
    set_up(SetupRequest(trained.spec, WeightStore(tmp_path), models, export=request, engine=EngineChoice.TORCH_ONLY))
    assert sorted(path.name for path in models.iterdir()) == ["sam2"]


def test_random_weights(trained: Trained, tmp_path: Path) -> None:
    assert set_up_random(trained.spec, tmp_path / "models") == ["sam2"]
    answer = logits(load(trained, tmp_path / "models", engine="torch", device="cpu"))
    assert np.isfinite(answer).all()
    assert answer.std() > 0


@pytest.mark.parametrize(("gpu", "ready_made", "chosen"), [(True, False, True), (False, False, False)])
def test_auto_is_torch_where_a_gpu_is(
    gpu: bool, ready_made: bool, chosen: bool, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "_has_gpu", lambda: gpu)
    monkeypatch.setattr(setup, "export_model", lambda *_, **__: (tmp_path, {}))
    monkeypatch.setattr(setup, "write_network", lambda *_: tmp_path / "network")
    written: list[Any] = []
    monkeypatch.setattr(setup, "write_exported", lambda *_, **named: written.append(named["network"]) or ["x"])
    set_up(
        SetupRequest(
            trained.spec, WeightStore(tmp_path), tmp_path, export=ExportRequest(trained.folder, trained.spec.side)
        )
    )
    assert written == [tmp_path / "network" if chosen else None]
