"""The commit that figures name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from triton_sam.bench import machine


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a program in a folder, and figures."""
    root = tmp_path / "checkout"
    for name in ("src/machine.py", "docs/data/click.json"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("1\n")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(machine, "__file__", str(root / "src" / "machine.py"))
    return root


def test_new_figures_are_no_change_of_the_code(checkout: Path) -> None:
    clean = machine.commit()
    assert clean
    (checkout / "docs/data/click.json").write_text("2\n")
    assert machine.commit() == clean
    (checkout / "src/machine.py").write_text("2\n")
    assert machine.commit() == f"{clean}-dirty"


def test_without_a_checkout_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))
    assert machine.commit() is None
