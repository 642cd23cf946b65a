"""``triton-sam models``: legible at 80 columns and in a pipe, with the state of each model."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.unit.serving_helpers import write_repository
from triton_sam.cli import app, model_table
from triton_sam.models.catalog import CATALOG, DEFAULT_MODEL
from triton_sam.models.vlm_catalog import VLM_CATALOG
from triton_sam.models.vlm_weights import VlmStore
from triton_sam.repository import availability
from triton_sam.settings import get_settings

runner = CliRunner()
MODELS = (*CATALOG.values(), *VLM_CATALOG.values())


@pytest.fixture(autouse=True)
def _nothing_in_the_hubs_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VlmStore, "is_installed", lambda _, spec: spec.source is None)
    monkeypatch.setattr(availability, "missing_module", lambda _extra: "")


def on_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a terminal of this width shows."""
    screen = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True, soft_wrap=True, markup=False)
    monkeypatch.setattr(model_table, "out", screen)
    model_table.print_models(get_settings())
    assert isinstance(screen.file, io.StringIO)
    # Dim and bold are left on a terminal without colours.
    return [line.rstrip() for line in _plain(screen.file.getvalue()).splitlines()]


def _plain(text: str) -> str:
    from rich.text import Text

    return Text.from_ansi(text).plain


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_each_model_with_its_state(width: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_repository(home / "model_repository")
    lines = on_a_terminal(width, monkeypatch)
    assert max(map(len, lines)) <= width
    for model in MODELS:
        (line,) = [line for line in lines if line.split()[:1] == [model.id]]
        state = {DEFAULT_MODEL: "ready", "sam3:shapes": "downloaded", "vlm:shapes": "downloaded"}.get(
            model.id, "not there"
        )
        assert f" {state} " in line
        assert model.best_for[:20] in line
    assert len(lines) <= 2 * len(MODELS), "most models take one line"


def test_a_pipe_gets_one_whole_line_for_each_model(home: Path) -> None:
    done = runner.invoke(app.app, ["models"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert [line.split()[0] for line in lines] == [model.id for model in MODELS]
    for line, model in zip(lines, MODELS, strict=True):
        assert line.endswith(f"  {model.best_for}")
    assert not home.exists(), "looking creates nothing"


def test_one_model_in_full() -> None:
    done = runner.invoke(app.app, ["models", "show", "sam1:mobile", "shapes"])
    assert done.exit_code == 0, done.output
    mobile, shapes = done.output.split("\n\n")
    assert "  state      not there\n" in mobile
    assert "  next       `triton-sam setup sam1:mobile`\n" in mobile
    assert "  licence    Apache-2.0\n" in mobile
    assert shapes.startswith("vlm:shapes: ")
    assert "  state      downloaded\n" in shapes


def test_a_family_is_its_default() -> None:
    shown = runner.invoke(app.app, ["models", "show", "sam3"]).output
    assert shown == runner.invoke(app.app, ["models", "show", "sam3:full"]).output
    assert shown.startswith("sam3:full: ")


def test_every_model_in_full_names_its_licence() -> None:
    done = runner.invoke(app.app, ["models", "show"])
    assert done.output.count("  licence    ") == len(MODELS)
