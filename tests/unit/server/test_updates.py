from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triton_sam.errors import ServerError
from triton_sam.repository.model_folders import ModelState, model_state
from triton_sam.server.updates import Updates

WAIT = 20.0


class Repository:
    """Folders with a config and versions, nothing in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sam2", "other"):
            self.add(name, 1)

    def add(self, name: str, version: int) -> None:
        (self.folder / name / str(version)).mkdir(parents=True)
        if not (self.folder / name / "config.pbtxt").exists():
            self.configure(name, "the first config")

    def configure(self, name: str, text: str) -> None:
        (self.folder / name / "config.pbtxt").write_text(text)

    def state(self, name: str) -> ModelState:
        state = model_state(self.folder / name)
        assert state is not None
        return state


class FakeProcess:
    """Loads what it is told to load, or raises; ``hold`` lets a load take its time."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.failure: Exception | None = None
        self.there = True
        self.ready = {"sam2": "1", "other": "1", "not served": "9"}
        self.hold = threading.Event()
        self.hold.set()

    def load(self, name: str) -> None:
        self.loads.append(name)
        assert self.hold.wait(WAIT)
        if self.failure is not None:
            raise self.failure
        self.ready[name] = str(int(self.ready[name]) + 1)

    def versions(self) -> dict[str, str]:
        if not self.there:
            raise ConnectionRefusedError
        return dict(self.ready)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture
def process() -> Any:
    return FakeProcess()


@pytest.fixture
def updates(repository: Repository, process: Any) -> Updates:
    made = Updates(repository.folder, ("sam2", "other"))
    assert made.prepare_start() == {}
    made.note_versions(process)
    return made


def look(updates: Updates, process: Any, times: int = 1) -> None:
    """As the supervisor looks, each time after the load before has ended."""
    for _ in range(times):
        updates.check_and_load(process)
        updates._join()


def test_a_quiet_repository(updates: Updates, process: Any) -> None:
    look(updates, process, 5)
    assert process.loads == []
    assert updates.versions == {"sam2": "1", "other": "1"}
    assert updates.problems == {}


def newer_version(repository: Repository) -> None:
    repository.add("sam2", 2)


def another_config(repository: Repository) -> None:
    repository.configure("sam2", "another config")


@pytest.mark.parametrize("change", [newer_version, another_config])
def test_a_change_is_loaded_once_and_when_it_has_lasted(
    change: Callable[[Repository], None], repository: Repository, updates: Updates, process: Any
) -> None:
    look(updates, process)
    change(repository)
    look(updates, process)
    assert process.loads == [], "a writer may be in the middle"
    look(updates, process, 5)
    assert process.loads == ["sam2"]
    assert updates.versions == {"sam2": "2", "other": "1"}
    assert updates.problems == {}


def test_a_writer_at_work_is_waited_for(repository: Repository, updates: Updates, process: Any) -> None:
    for version in range(2, 6):
        repository.add("sam2", version)
        look(updates, process)
    assert process.loads == []
    look(updates, process, 3)
    assert process.loads == ["sam2"]


def test_two_models_are_loaded_one_after_the_other(repository: Repository, updates: Updates, process: Any) -> None:
    repository.add("sam2", 2)
    repository.add("other", 2)
    look(updates, process, 2)
    assert len(process.loads) == 1
    look(updates, process, 5)
    assert sorted(process.loads) == ["other", "sam2"]


def test_the_supervisor_does_not_wait_for_a_load(repository: Repository, updates: Updates, process: Any) -> None:
    process.hold.clear()
    repository.add("sam2", 2)
    for _ in range(5):
        updates.check_and_load(process)
    assert updates.versions["sam2"] == "1"
    repository.add("sam2", 3)  # while version 2 is on its way
    process.hold.set()
    updates._join()
    look(updates, process, 5)
    assert process.loads == ["sam2", "sam2"]


def test_a_version_that_does_not_load_is_reported_once_and_not_tried_again(
    repository: Repository, updates: Updates, process: Any, caplog: pytest.LogCaptureFixture
) -> None:
    process.failure = ServerError("load model sam2 failed: decoder.onnx does not load")
    repository.add("sam2", 2)
    look(updates, process, 8)
    assert process.loads == ["sam2"]
    assert "version 2 does not load" in updates.problems["sam2"]
    assert "decoder.onnx does not load" in updates.problems["sam2"]
    assert caplog.text.count("decoder.onnx does not load") == 1
    assert updates.versions["sam2"] == "1"
    process.failure = None
    repository.add("sam2", 3)
    look(updates, process, 3)
    assert process.loads == ["sam2", "sam2"]
    assert updates.problems == {}


def test_a_fault_of_our_own_is_a_problem_too(repository: Repository, updates: Updates, process: Any) -> None:
    process.failure = ZeroDivisionError("a bug")
    repository.add("sam2", 2)
    look(updates, process, 8)
    assert process.loads == ["sam2"]
    assert "a bug" in updates.problems["sam2"]


def test_a_server_that_dies_meanwhile_says_nothing_about_the_version(
    repository: Repository, updates: Updates, process: Any
) -> None:
    before = repository.state("sam2")
    process.failure = ServerError("load model sam2 failed: Socket closed")
    process.there = False
    repository.add("sam2", 2)
    look(updates, process, 2)
    assert updates.problems == {}
    assert updates.prepare_start() == {"sam2": before}, "it comes back with what it had"
    process.failure, process.there = None, True
    look(updates, process, 2)
    assert process.loads == ["sam2", "sam2"]
    assert updates.prepare_start() == {}


def test_a_server_comes_back_with_what_it_served(repository: Repository, updates: Updates, process: Any) -> None:
    good = repository.state("sam2")
    process.failure = ServerError("broken")
    repository.add("sam2", 2)
    repository.configure("sam2", "for version 2")
    look(updates, process, 3)
    assert updates.pinned("sam2") == good
    assert updates.pinned("other") is None
    assert updates.prepare_start() == {"sam2": good}
    look(updates, process, 5)
    assert process.loads == ["sam2"], "the broken version is not tried again"
    repository.configure("sam2", good.config)
    (repository.folder / "sam2" / "2").rmdir()
    assert updates.pinned("sam2") is None
    assert updates.prepare_start() == {}


def test_what_is_gone_cannot_come_back(repository: Repository, updates: Updates) -> None:
    repository.add("sam2", 2)
    (repository.folder / "sam2" / "1").rmdir()
    assert updates.pinned("sam2") is None
    assert updates.prepare_start() == {}


def test_a_folder_that_vanishes_is_no_change(repository: Repository, updates: Updates, process: Any) -> None:
    (repository.folder / "sam2").rename(repository.folder / "elsewhere")
    look(updates, process, 3)
    assert process.loads == []
    (repository.folder / "elsewhere").rename(repository.folder / "sam2")
    look(updates, process, 3)
    assert process.loads == []


@pytest.mark.parametrize("error", [OSError("no answer"), ValueError("no JSON"), KeyError("version")])
def test_versions_that_cannot_be_had_stay(error: Exception, updates: Updates, process: Any) -> None:
    def fail() -> dict[str, str]:
        raise error

    process.versions = fail
    assert not updates.note_versions(process)
    assert updates.versions == {"sam2": "1", "other": "1"}


def test_the_state_is_a_value() -> None:
    state = ModelState(1, "text")
    assert dataclasses.replace(state) == state


def test_what_served_before_a_restart_and_does_not_load_after_it_is_tried_once_more(
    updates: Updates, process: Any
) -> None:
    assert updates.prepare_start() == {}
    updates.note_failures({"sam2": "no memory yet"})
    assert updates.missing == {"sam2"}
    look(updates, process, 4)
    assert process.loads == ["sam2"]
    assert updates.missing == frozenset()


def test_what_never_served_waits_until_its_folder_changes(repository: Repository, process: Any) -> None:
    made = Updates(repository.folder, ("sam2", "other"))
    made.prepare_start()
    made.note_failures({"sam2": "corrupt"})
    look(made, process, 4)
    assert process.loads == []
    repository.add("sam2", 2)
    look(made, process, 4)
    assert process.loads == ["sam2"]
