"""Small checkpoints, made once, and the engines of them; torch is imported by those who ask for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.one_thread import one_thread
from triton_sam.models.vlm_catalog import get_vlm

if TYPE_CHECKING:
    from triton_sam.engines.vlm.generate import GeneratingEngine


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="session")
def llava_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.vlm_checkpoints import make_llava

    return make_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="session")
def kosmos2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.vlm_checkpoints import make_kosmos2

    return make_kosmos2(tmp_path_factory.mktemp("kosmos2"))


@pytest.fixture(scope="session")
def grounded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.vlm_checkpoints import make_kosmos2

    return make_kosmos2(tmp_path_factory.mktemp("grounded"), grounded=True)


@pytest.fixture(scope="session")
def moondream2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.vlm_checkpoints import make_moondream2

    return make_moondream2(tmp_path_factory.mktemp("moondream2"))


def _engine(model_id: str, folder: Path) -> GeneratingEngine:
    from tests.unit.vlm.placement import ON_CPU
    from triton_sam.engines.vlm.generate import GeneratingEngine
    from triton_sam.engines.vlm.loading import load_engine

    engine = load_engine(get_vlm(model_id), folder, ON_CPU, 4)
    assert isinstance(engine, GeneratingEngine)
    return engine


@pytest.fixture(scope="session")
def llava(llava_folder: Path) -> GeneratingEngine:
    return _engine("vlm:llava", llava_folder)


@pytest.fixture(scope="session")
def kosmos2(kosmos2_folder: Path) -> GeneratingEngine:
    return _engine("vlm:kosmos2", kosmos2_folder)


@pytest.fixture(scope="session")
def grounded(grounded_folder: Path) -> GeneratingEngine:
    return _engine("vlm:kosmos2", grounded_folder)
