"""Faults meet the analytic model, whose masks a test can work out; the long forms meet what users are served."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ServerFactory, server_factory
from tests.faults.helpers import marked_processes
from tests.waiting import eventually
from triton_sam.models.specs import ModelSpec

#: In the environment of every process that these tests start, and of all that those start.
_MARK = "STARTED_BY_TEST_SESSION"


@pytest.fixture(scope="session")
def start_real_server(
    real_repository: Path, real_spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory
) -> ServerFactory:
    """As ``start_server``, with the published weights: figures of docs/reliability.md are about them."""
    return server_factory(real_repository, real_spec, tmp_path_factory)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """At the end no process is left that was started since here, be it one that has lost its parent.

    Fixtures end in the reverse of their order: servers that are shared by all tests have ended by then.
    """
    mark = f"{os.getpid()}-{time.time_ns()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_MARK, mark)
        yield
    left: dict[int, str] = {}

    def all_ended() -> bool:
        left.clear()
        left.update(marked_processes(f"{_MARK}={mark}"))
        return not left

    try:
        eventually(all_ended, "the end of all processes", patience=20)
    except AssertionError:
        pytest.fail("processes were left behind: " + "; ".join(f"{pid} {told}" for pid, told in left.items()))
