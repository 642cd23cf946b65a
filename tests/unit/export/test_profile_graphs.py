"""Profiles with real, if small, graphs; their choices are in ``test_profiles``."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.unit.export.small import Small, SmallFactory, assert_close, drawn_pixels, session
from triton_sam.export import onnx_files
from triton_sam.models.specs import graphs_to_json
from triton_sam.repository.profiles import PAINTERA, ProfileModel, write_profile_model

pytestmark = pytest.mark.torch


def export_folder(made: Small, folder: Path) -> Path:
    folder.mkdir()
    for part in ("encoder.onnx", "decoder.onnx"):
        shutil.copy(made.folder / part, folder)
    (folder / "graphs.json").write_text(graphs_to_json(made.spec.graphs))
    return folder


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("model", PAINTERA.models, ids=[model.name for model in PAINTERA.models])
def test_an_encoder_under_the_names_of_paintera(
    model: ProfileModel, apart: bool, small: SmallFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small(model.model_id)
    folder = export_folder(made, tmp_path / "export")
    if apart:  # as the real ones are, by their size
        monkeypatch.setattr(onnx_files, "_LARGEST_INLINE", 1000)
        onnx_files.save(onnx.load(str(folder / "encoder.onnx")), folder / "encoder.onnx")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write_profile_model(PAINTERA, model, folder, tmp_path / "repository")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    shutil.rmtree(folder)  # a repository stands on its own

    version = tmp_path / "repository" / model.name / "1"
    assert len(list(version.iterdir())) == 1 + apart
    pixels = drawn_pixels(made.spec.side, seed=4)
    black, white = model.pixel_range
    theirs = (pixels * (white - black) + black).astype(np.float32)
    opened = session(version / "model.onnx")
    names = [entry.name for entry in opened.get_outputs()]
    assert names == [model.outputs.get(name, name) for name, _ in made.spec.encoder.outputs]
    given = dict(zip(names, opened.run(names, {made.spec.encoder.image: theirs}), strict=True))
    for name, wanted in made.encode(pixels).items():
        assert_close(given[model.outputs.get(name, name)], wanted)
