"""What all benchmarks share."""

from __future__ import annotations

import os
import signal

import pytest
import typer
from typer.testing import CliRunner

from triton_sam.cli.bench_options import BenchOptions, with_options


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_ended_closes_what_it_has_open(number: signal.Signals) -> None:
    app, closed = typer.Typer(), []

    @app.command()
    @with_options
    def measure(options: BenchOptions) -> None:
        try:
            os.kill(os.getpid(), number)
            raise AssertionError("the signal did not arrive")
        finally:
            closed.append(options.model)

    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(app, ["--model", "sam2:tiny"])
    assert result.exit_code == 130
    assert closed == ["sam2:tiny"]
    assert signal.getsignal(signal.SIGTERM) == before
