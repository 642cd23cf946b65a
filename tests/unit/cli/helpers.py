"""Runs the command line and checks how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from triton_sam.cli import app


@dataclass
class Ended:
    code: int
    out: str
    err: str


#: One command with any words.
Run = Callable[..., Ended]


def run_main(*words: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """``main`` as the installed command calls it, in this process."""
    monkeypatch.setattr(sys, "argv", ["triton-sam", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        app.main()
    said = capsys.readouterr()
    return Ended(int(ended.value.code or 0), said.out, said.err)


def run_process(*words: object, **environment: str) -> Ended:
    done = subprocess.run(
        [sys.executable, "-m", "triton_sam.cli", *map(str, words)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def assert_one_sentence(ended: Ended, *told: str) -> None:
    assert ended.code == 1
    assert ended.err.lstrip().startswith("error: ")  # a progress bar without a file leaves an empty line
    assert ended.err.strip().count("\n") == 0
    assert "Traceback" not in ended.err
    assert "this is a bug" not in ended.err
    for words in told:
        assert words in ended.err
