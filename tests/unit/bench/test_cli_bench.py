from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.bench.helpers import result
from triton_sam.bench import results, target
from triton_sam.bench import session as session_bench
from triton_sam.bench.figures import Figure
from triton_sam.bench.samples import Plan
from triton_sam.cli import bench
from triton_sam.cli.bench_options import BenchOptions
from triton_sam.errors import InvalidInput

COMMANDS = ("encode", "click", "session", "hover", "throughput", "users", "memory", "compare", "server")
RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize("name", COMMANDS)
def test_all_take_the_common_options(name: str) -> None:
    group: Any = typer.main.get_command(bench.bench_app)
    options = {word for parameter in group.commands[name].params for word in parameter.opts}
    wanted = "model rounds samples warm-up output baseline image side model-repository url random-weights"
    assert {f"--{word}" for word in wanted.split()} <= options


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the measurement of ``bench session``; returns the options and the plan that it got."""
    given: list[Any] = []

    @contextlib.contextmanager
    def open_target(options: target.TargetOptions, **_: object) -> Iterator[Any]:
        given.append(options)
        yield SimpleNamespace(settle=0.5)

    def measure(_: object, plan: object) -> results.Result:
        given.append(plan)
        return result(Figure("session", 2.0, "ms", better="lower"), name="session")

    monkeypatch.setattr(target, "open_target", open_target)
    monkeypatch.setattr(session_bench, "measure_session", measure)
    return given


def test_options_arrive(measured: list[Any], tmp_path: Path) -> None:
    words = ["session", "--model", "sam2", "--rounds", "3", "--samples", "7", "--warm-up", "0", "--side", "256"]
    words += ["--url", "host:8000", "--url", "grpc://host:8001", "--output", str(tmp_path / "out")]
    done = RUNNER.invoke(bench.bench_app, words)
    assert done.exit_code == 0, done.output
    options, plan = measured
    assert options.spec.id == "sam2.1:base_plus"
    assert (options.side, options.urls) == (256, ("host:8000", "grpc://host:8001"))
    assert plan == Plan(rounds=3, samples=7, warm_up=0, settle=0.5)
    assert results.read(tmp_path / "out").name == "session"


@pytest.mark.parametrize(("before", "code"), [(2.1, 0), (1.0, 1)])
def test_a_regression_is_exit_code_1(measured: list[Any], tmp_path: Path, before: float, code: int) -> None:
    results.write(result(Figure("session", before, "ms", better="lower"), name="session"), tmp_path / "before.json")
    done = RUNNER.invoke(bench.bench_app, ["session", "--baseline", str(tmp_path / "before.json")])
    assert done.exit_code == code
    assert ("worse than the baseline" in done.output) is (code == 1)


def test_an_unreadable_baseline_is_reported_before_anything_is_measured(measured: list[Any]) -> None:
    done = RUNNER.invoke(bench.bench_app, ["session", "--baseline", "/nowhere.json"])
    assert isinstance(done.exception, InvalidInput)
    assert measured == []


def test_a_missed_bar_is_exit_code_1() -> None:
    with pytest.raises(typer.Exit) as caught:
        BenchOptions().finish(result(Figure("click", 2.0, "ms", 1.0)))
    assert caught.value.exit_code == 1


@pytest.mark.part("bench")
def test_plots_can_be_drawn_later(tmp_path: Path) -> None:
    results.write(result(), tmp_path)
    (tmp_path / "click.png").unlink()
    done = RUNNER.invoke(bench.bench_app, ["plot", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "click.png").stat().st_size > 5_000


@pytest.mark.parametrize("model", ["sam9", "vlm:shapes"])
def test_only_segmenters_are_measured(model: str) -> None:
    with (
        pytest.raises(InvalidInput, match=f"there is no model '{model}'"),
        target.open_target(target.TargetOptions(model)),
    ):
        pytest.fail("served")


def test_memory_needs_something_to_measure() -> None:
    done = RUNNER.invoke(bench.bench_app, ["memory", "--images", "0", "--cached", "0"])
    assert isinstance(done.exception, InvalidInput)
