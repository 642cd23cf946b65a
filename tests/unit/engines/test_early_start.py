"""What begins before torch is imported may fail in every way without a consequence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from triton_sam.engines.early_start import create_context, read_ahead


def test_a_file_that_is_missing_is_left_to_the_engine(tmp_path: Path) -> None:
    read_ahead(tmp_path / "none")
    (tmp_path / "weights").write_bytes(bytes(1000))
    before = len(list(Path("/proc/self/fd").iterdir()))
    read_ahead(tmp_path / "weights")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("library", ["libnone.so.7", "libc.so.6"], ids=["missing", "not a driver"])
def test_a_machine_without_a_driver(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    thread = create_context(library)
    thread.join(60)
    assert not thread.is_alive()
    assert os.environ["CUDA_MODULE_LOADING"] == "EAGER", "the user's choice"
