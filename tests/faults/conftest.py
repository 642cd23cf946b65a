"""Fixtures of the fault tests. Most use the analytic model, whose masks are known; long ones the published model."""

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

#: Set in the environment of every process that these tests start, directly or not.
_MARK = "STARTED_BY_TEST_SESSION"


@pytest.fixture(scope="session")
def start_real_server(
    real_repository: Path, real_spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory
) -> ServerFactory:
    """As ``start_server``, with the published weights, which the figures of docs/how/reliability.md refer to."""
    return server_factory(real_repository, real_spec, tmp_path_factory)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails if a process that the tests started, even an orphan, is left at the end.

    Fixtures end in reverse order, so that servers shared by all tests have ended by then.
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
        pytest.fail("processes were left behind: " + "; ".join(f"{pid} {command}" for pid, command in left.items()))
