"""`make test` runs every stage, whatever fails, and says how to repeat a failure."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAILING = """import pytest

class TestInside:
    @pytest.mark.parametrize("number", [1, 2])
    def test_numbers(self, number):
        assert number == 1

def test_fixture(no_such_fixture): ...

@pytest.mark.skip(reason="no GPU")
def test_gpu(): ...
"""


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    module = runpy.run_path(str(ROOT / "scripts" / "run_tests.py"))
    scope = module["run"].__globals__
    monkeypatch.setitem(scope, "ROOT", tmp_path)
    monkeypatch.setitem(scope, "REPORTS", tmp_path / "reports")
    monkeypatch.setitem(scope, "RECORD", tmp_path / "record.json")
    return scope


def test_failures_are_listed_with_the_command_that_repeats_them(runner: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(FAILING)
    stages = [
        runner["Stage"]("check", "tools", tools=(("false",), ("true",))),
        runner["Stage"]("unit", "tests", pytest=("tests/test_some.py",)),
    ]
    outcomes = [runner["run"](stage) for stage in stages]
    assert [outcome.result for outcome in outcomes] == ["failed", "failed"]
    assert outcomes[1].passed == 1
    assert list(outcomes[1].skips.values()) == [1]
    text = runner["summary"]("make test", outcomes, 61.0)
    assert "make test: 1 min 01 s" in text
    assert "python -m pytest 'tests/test_some.py::TestInside::test_numbers[2]'" in text
    assert "python -m pytest tests/test_some.py::test_fixture" in text
    assert text.count("      false") == 1


def test_a_stage_without_a_single_test_has_failed(runner: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text("")
    outcome = runner["run"](runner["Stage"]("unit", "tests", pytest=("test_none.py",)))
    assert outcome.failures[0][0] == "no test passed"


UNSTEADY = """import pathlib

def test_second_time():
    seen = pathlib.Path(__file__).with_name("seen")
    repeated = seen.exists()
    seen.write_text("")
    assert repeated

def test_steady(): ...
"""


def test_a_test_that_passes_only_when_repeated_is_named(runner: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(UNSTEADY)
    outcome = runner["run"](runner["Stage"]("system", "tests", pytest=("test_some.py",), repeats=True))
    assert (outcome.result, outcome.passed, outcome.unsteady) == ("passed", 2, ["test_some.py::test_second_time"])
    text = runner["summary"]("make test", [outcome], 1.0)
    assert "1 failed and passed when repeated alone" in text
    assert "test_some.py::test_second_time" in text


def test_a_test_that_fails_twice_has_failed(runner: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("def test_wrong(): assert False\n\ndef test_right(): ...\n")
    outcome = runner["run"](runner["Stage"]("system", "tests", pytest=("test_some.py",), repeats=True))
    assert (outcome.result, outcome.unsteady) == ("failed", [])
