from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.unit.export.families import WITH_FEATURES
from tests.unit.export.small import Small, SmallFactory, assert_close, drawn_pixels, session
from triton_sam.export.encoder_adapter import adapt_encoder

pytestmark = pytest.mark.torch


@pytest.fixture(scope="session", params=WITH_FEATURES)
def encoder(request: pytest.FixtureRequest, small: SmallFactory) -> Small:
    return small(request.param)


def outputs_of(graph: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    opened = session(graph)
    names = [entry.name for entry in opened.get_outputs()]
    return dict(zip(names, opened.run(names, feeds), strict=True))


def test_outputs_get_other_names(encoder: Small, tmp_path: Path) -> None:
    names = [name for name, _ in encoder.spec.encoder.outputs]
    renamed = {names[0]: "theirs", names[2]: "theirs.2"}
    before = encoder.encoder_file.read_bytes()
    adapt_encoder(encoder.encoder_file, tmp_path / "adapted.onnx", outputs=renamed)
    onnx.checker.check_model(str(tmp_path / "adapted.onnx"))
    pixels = drawn_pixels(encoder.spec.side, seed=1)
    found = outputs_of(tmp_path / "adapted.onnx", {encoder.spec.encoder.image: pixels})
    assert list(found) == ["theirs", names[1], "theirs.2"]
    for ours in names:
        np.testing.assert_array_equal(found[renamed.get(ours, ours)], encoder.encode(pixels)[ours])
    assert encoder.encoder_file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["adapted.onnx"]


@pytest.mark.parametrize("pixel_range", [(-1.0, 1.0), (0.0, 255.0)])
def test_another_range_of_pixels(pixel_range: tuple[float, float], encoder: Small, tmp_path: Path) -> None:
    adapt_encoder(encoder.encoder_file, tmp_path / "adapted.onnx", outputs={}, pixel_range=pixel_range)
    onnx.checker.check_model(str(tmp_path / "adapted.onnx"))
    ours = np.concatenate([drawn_pixels(encoder.spec.side, seed) for seed in range(2)])
    black, white = pixel_range
    theirs = (ours * (white - black) + black).astype(np.float32)
    found = outputs_of(tmp_path / "adapted.onnx", {encoder.spec.encoder.image: theirs})
    wanted = encoder.encode(ours)
    assert list(found) == list(wanted)
    for name in wanted:
        assert_close(found[name], wanted[name])
    raw = outputs_of(tmp_path / "adapted.onnx", {encoder.spec.encoder.image: ours})
    name = encoder.spec.encoder.embedding
    assert np.abs(raw[name] - wanted[name]).max() > 0.1 * wanted[name].std()


def test_both_at_once(encoder: Small, tmp_path: Path) -> None:
    ours = encoder.spec.encoder.embedding
    adapt_encoder(encoder.encoder_file, tmp_path / "a.onnx", outputs={ours: "image_embed"}, pixel_range=(-1.0, 1.0))
    pixels = drawn_pixels(encoder.spec.side, seed=1)
    found = outputs_of(tmp_path / "a.onnx", {encoder.spec.encoder.image: pixels * 2 - 1})
    assert_close(found["image_embed"], encoder.encode(pixels)[ours])
    assert ours not in found
