"""Model repositories that commit ebd881f wrote are found and served as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.old_repository import OLD_REPOSITORIES, contents, copy_old_repository
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.repository import availability, segmenters, vlms
from triton_sam.repository.segmenters import find_profile_models, find_segmenters, is_current
from triton_sam.repository.vlms import find_vlms, is_current_vlm
from triton_sam.server import process, selection
from triton_sam.server.selection import ModelSelection, prepare
from triton_sam.settings import Settings

SPEC, SHAPES = get_spec(DEFAULT_MODEL), get_vlm("vlm:shapes")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """As ``triton-sam setup`` of that commit left it, below the home of :func:`settings`."""
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(b"graph")
    (tmp_path / "home").mkdir()
    return copy_old_repository("setup", Settings(home=tmp_path / "home").repository, graph, graph)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


def test_the_imports_of_old_sources_resolve(tmp_path: Path) -> None:
    """In a process of its own, where a stand-in has the name of the module that only Triton's processes have."""
    backend = tmp_path / "model.py"
    backend.write_text(process._ONNX_BACKEND_SOURCE)  # written at each start of a server, also for old repositories
    sources = [*sorted(OLD_REPOSITORIES.rglob("model.py")), backend]
    assert len(sources) == 5
    code = (
        "import runpy, sys; from unittest.mock import MagicMock; "
        "sys.modules['triton_python_backend_utils'] = MagicMock(); "
        "[runpy.run_path(source)['TritonPythonModel'].execute for source in sys.argv[1:]]"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code, *sources], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_old_folders_are_found_and_those_of_segmenters_are_current(repository: Path) -> None:
    assert find_segmenters(repository) == {"sam2": SPEC}
    assert find_profile_models(repository) == ["sam1_encoder"]
    assert find_vlms(repository) == {"shapes": SHAPES}
    assert is_current(SPEC, repository)
    assert not is_current_vlm(SHAPES, repository), "it has no input for tasks"


@pytest.mark.parametrize("own", [False, True])
def test_old_folders_are_served_without_rewriting_segmenters(
    own: bool, repository: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a repository of the user's own is written; elsewhere models that answer get the input for tasks."""
    monkeypatch.setattr(availability, "missing_module", lambda _extra: "")
    modules = [(selection, "set_up"), (selection, "refresh"), (segmenters, "writing"), *([(vlms, "writing")] * own)]
    for module, name in modules:
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("written"))
    before = contents(repository)
    found = prepare([], settings, repository if own else None)
    assert found == ModelSelection(repository, {"sam2": SPEC}, {"shapes": SHAPES})
    after = contents(repository)
    changed = {name for name, content in after.items() if content != before.get(name)}
    assert {name.partition("/")[0] for name in changed} == (set() if own else {SHAPES.name, SHAPES.stream_name})
    assert is_current_vlm(SHAPES, repository) == (not own)
