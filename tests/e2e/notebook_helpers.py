"""Runs a notebook as a reader does: in a kernel of its own, top to bottom.

nbformat and nbclient are imported where they are used: the environment for every commit has neither, and collects the
tests of the notebooks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def offline_variables(folder: Path) -> dict[str, str]:
    """For the server and the kernel: nothing is fetched, and nothing is left in the user's folders."""
    return {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(folder / "hub"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "jupyter"),
        "JUPYTER_PLATFORM_DIRS": "1",
    }


def run_notebook(path: Path, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Cell id -> what it wrote; CellExecutionError with the traceback where a cell fails."""
    import nbformat
    from nbclient import NotebookClient

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=400, kernel_name="python3").execute(cwd=str(path.parent))
    return {cell.id: _text(cell) for cell in notebook.cells if cell.cell_type == "code"}


def check_stored(path: Path) -> None:
    """Valid, without outputs, and with ids that say something."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.nbformat_minor >= 5, "older ones have no cell ids"
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    assert not any(re.fullmatch("[0-9a-f]{8}", cell.id) for cell in notebook.cells), "ids that say something"
    assert notebook.cells[0].source.startswith("# "), "a title"


def _text(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")
