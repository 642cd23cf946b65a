"""``triton_sam2``, the package's older name."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import triton_sam


@pytest.fixture
def alias(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The older name, imported anew."""
    monkeypatch.delitem(sys.modules, "triton_sam2", raising=False)
    with pytest.warns(DeprecationWarning, match="write `import triton_sam` or `from triton_sam import"):
        return importlib.import_module("triton_sam2")


def run_python(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` as any user of the installed package would: isolated, in a folder of their own."""
    command = [sys.executable, "-I", *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)


@pytest.mark.parametrize("name", triton_sam.__all__)
def test_every_public_name_is_the_same_object(alias: ModuleType, name: str) -> None:
    assert getattr(alias, name) is getattr(triton_sam, name)


def test_one_warning_and_it_points_at_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton_sam2", raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from triton_sam2 import MaskSet, SAM2TritonClient
    assert (MaskSet, SAM2TritonClient) == (triton_sam.MaskSet, triton_sam.SAM2TritonClient)
    assert [(warning.category, warning.filename) for warning in caught] == [(DeprecationWarning, __file__)]


def test_all_and_dir_are_forwarded(alias: ModuleType) -> None:
    scope: dict[str, object] = {}
    exec("from triton_sam2 import *", scope)
    assert list(alias.__all__) == list(triton_sam.__all__)
    assert set(triton_sam.__all__) <= set(scope)
    assert set(triton_sam.__all__) <= set(dir(alias))


def test_a_name_that_is_not_there(alias: ModuleType) -> None:
    with pytest.raises(AttributeError, match="'triton_sam2' has no attribute 'SAM9'"):
        _ = alias.SAM9
    with pytest.raises(ImportError, match="SAM9"):
        exec("from triton_sam2 import SAM9")


def test_a_name_that_comes_later_needs_no_change_here(alias: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    later = object()
    monkeypatch.setattr(triton_sam, "__all__", [*triton_sam.__all__, "LaterClient"])
    monkeypatch.setattr(triton_sam, "LaterClient", later, raising=False)
    assert alias.LaterClient is later


def test_the_installed_package_has_it(tmp_path: Path) -> None:
    code = (
        "import importlib, json, warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    found = importlib.import_module('triton_sam2').SAM2TritonClient\n"
        "print(json.dumps([found.__module__, [str(warning.message) for warning in caught]]))"
    )
    done = run_python(tmp_path, code)
    assert done.returncode == 0, done.stderr
    home, messages = json.loads(done.stdout)
    assert home == "triton_sam.client.sync_client"
    assert len([message for message in messages if "triton_sam2 is now called triton_sam" in message]) == 1


def test_with_warnings_as_errors_it_says_the_mend(tmp_path: Path) -> None:
    done = run_python(tmp_path, "import triton_sam2", "-W", "error")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("DeprecationWarning: the package triton_sam2 is now called")
