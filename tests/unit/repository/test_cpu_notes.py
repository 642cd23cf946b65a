"""A graph that the rewrites for CPUs do not know: set-up tells, the plain one is served, doctor knows why."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from tests.unit.small_decoder import GRAPHS, SmallDecoder
from triton_sam.cli import doctor
from triton_sam.cli.findings import NOTE, Finding
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import CPU_DECODER_FILE, DECODER_FILE, ENCODER_FILE, GRAPHS_FILE, graphs_to_json
from triton_sam.repository.cpu_notes import DECODER_NOTE, ENCODER_NOTE, read_note, write_note
from triton_sam.repository.setup import write_exported
from triton_sam.settings import Settings

pytest.importorskip("onnx")
SPEC = get_spec("sam2.1:large")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


def set_up(settings: Settings, folder: Path, *, fast_decoder: bool = True, **ways: Any) -> tuple[Path, list[str]]:
    """An export with a small decoder, set up; (the newest version of its segmenter, what set-up said)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ENCODER_FILE).write_bytes(b"an encoder")
    (folder / DECODER_FILE).write_bytes(SmallDecoder(**ways).model().SerializeToString())
    (folder / GRAPHS_FILE).write_text(graphs_to_json(GRAPHS))
    lines: list[str] = []
    name = write_exported(SPEC, folder, settings.repository, fast_decoder=fast_decoder, say=lines.append)[0]
    newest = max((settings.repository / name).glob("[0-9]*"), key=lambda path: int(path.name))
    return newest, lines


def found(settings: Settings) -> list[Finding]:
    return list(doctor._rewrites(settings))


@pytest.mark.parametrize("unknown", ["tokens", "image"])
def test_an_unknown_attention_is_reported_by_setup_and_doctor(unknown: str, settings: Settings, tmp_path: Path) -> None:
    version, (warning,) = set_up(settings, tmp_path / "export", unknown=unknown)
    assert warning.startswith("the plain decoder is served: only 1 of 2 attentions were found in its graph, with ")
    for package in ("onnx", "onnxruntime"):
        assert f"{package} {importlib.metadata.version(package)}" in warning
    assert (version / DECODER_FILE).read_bytes() == (tmp_path / "export" / DECODER_FILE).read_bytes()
    assert not list(settings.home.rglob(CPU_DECODER_FILE))
    assert not list(tmp_path.glob(f"export/*{CPU_DECODER_FILE}*"))
    assert found(settings) == [Finding("sam2 decoder", NOTE, warning)]


def test_a_fixed_graph_is_no_longer_reported(settings: Settings, tmp_path: Path) -> None:
    set_up(settings, tmp_path / "export", unknown="image")
    version, (line,) = set_up(settings, tmp_path / "export", spelling="reshaped")
    assert "2 attentions and 2 upscalings rewritten" in line
    assert (version / CPU_DECODER_FILE).is_file()
    assert not (version / DECODER_NOTE).exists()
    assert found(settings) == []


def test_a_missing_decoder_without_a_note_names_the_fix(settings: Settings, tmp_path: Path) -> None:
    """As older versions left it, or a set-up that was told to make none."""
    version, lines = set_up(settings, tmp_path / "export", fast_decoder=False)
    assert lines == []
    (finding,) = found(settings)
    assert finding.name == "sam2 decoder"
    assert f"run `triton-sam setup {SPEC.id}`" in finding.text
    assert found(Settings(home=settings.home, fast_decoder=False)) == []
    (version / DECODER_FILE).unlink()  # a model for torch alone has no decoder to rewrite
    assert found(settings) == []


def test_an_encoder_is_reported_too(settings: Settings, tmp_path: Path) -> None:
    version, _ = set_up(settings, tmp_path / "export")
    (version / ENCODER_NOTE).write_text("the plain encoder is served: for a reason\n")
    assert found(settings) == [Finding("sam2 encoder", NOTE, "the plain encoder is served: for a reason")]


def test_a_machine_without_a_repository(settings: Settings) -> None:
    assert found(settings) == []


def test_a_note_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert not write_note(tmp_path / "file" / "note.txt", "why")
    assert read_note(tmp_path / "file" / "note.txt") is None
    assert read_note(tmp_path / "file") is None
    assert write_note(tmp_path / "new" / "note.txt", "why")
    assert read_note(tmp_path / "new" / "note.txt") == "why"
