"""Small checkpoints, made once, and the engines of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import vlm_checkpoints as checkpoints
from triton_sam.engines.vlm.generate import GeneratingEngine
from triton_sam.engines.vlm.loading import Placement, load_engine
from triton_sam.vlm_catalog import get_vlm

ON_CPU = Placement("cpu", "float32", 1)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small are slower on several, and much slower beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def llava_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="session")
def kosmos2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_kosmos2(tmp_path_factory.mktemp("kosmos2"))


@pytest.fixture(scope="session")
def grounded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_kosmos2(tmp_path_factory.mktemp("grounded"), grounded=True)


@pytest.fixture(scope="session")
def moondream2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_moondream2(tmp_path_factory.mktemp("moondream2"))


@pytest.fixture(scope="session")
def llava(llava_folder: Path) -> GeneratingEngine:
    engine = load_engine(get_vlm("vlm:llava"), llava_folder, ON_CPU, 4)
    assert isinstance(engine, GeneratingEngine)
    return engine


@pytest.fixture(scope="session")
def kosmos2(kosmos2_folder: Path) -> GeneratingEngine:
    engine = load_engine(get_vlm("vlm:kosmos2"), kosmos2_folder, ON_CPU, 4)
    assert isinstance(engine, GeneratingEngine)
    return engine


@pytest.fixture(scope="session")
def grounded(grounded_folder: Path) -> GeneratingEngine:
    engine = load_engine(get_vlm("vlm:kosmos2"), grounded_folder, ON_CPU, 4)
    assert isinstance(engine, GeneratingEngine)
    return engine
