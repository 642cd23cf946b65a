"""The model for videos that is put together without torch: it is what an export of the same weights is, and tracks."""

from __future__ import annotations

import importlib.metadata
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.integration.reference import DirectSam2
from triton_sam.models.bundled import bundled_path
from triton_sam.models.catalog import VIDEO_MODEL, get_spec
from triton_sam.models.specs import DECODER_FILE, ENCODER_FILE, MEMORY_FILE, MEMORY_GRAPHS, Role
from triton_sam.models.weights import WeightStore, silent
from triton_sam.repository.assembling import assemble_checkpoint, assemble_graphs

#: Forty frames take a minute, and many where others use the machine.
_PATIENCE = 1500
pytestmark = [pytest.mark.triton, pytest.mark.torch, pytest.mark.part("video"), pytest.mark.timeout(_PATIENCE + 300)]

SPEC = get_spec(VIDEO_MODEL)
#: Share of an output's deviation by which rounding may differ.
ROUNDING = 1e-4


@pytest.fixture(scope="module")
def own_store(store: WeightStore, tmp_path_factory: pytest.TempPathFactory) -> WeightStore:
    """A cache of these tests' own, with the downloaded files."""
    own = WeightStore(tmp_path_factory.mktemp("home"))
    own.blobs.mkdir()
    for file in SPEC.files:
        own.path(file).symlink_to(store.path(file))
    return own


@pytest.fixture(scope="module")
def folder(own_store: WeightStore) -> Path:
    return assemble_graphs(SPEC, own_store, silent, lambda _: None)


@pytest.fixture(scope="module")
def checkpoint(own_store: WeightStore) -> Path:
    return assemble_checkpoint(SPEC, own_store, silent)


def test_the_graphs_are_those_of_an_export(folder: Path, checkpoint: Path, tmp_path: Path) -> None:
    """As an export itself is checked against torch, on a photograph and drawings, with the memory."""
    from triton_sam.export import run
    from triton_sam.export.checkpoint import network_of, read_checkpoint
    from triton_sam.export.checkpoint_keys import map_keys
    from triton_sam.export.memory_graphs import write_description

    weights = map_keys(read_checkpoint(checkpoint))
    assert weights.generation == "sam2.1"
    assert weights.unused == []
    network = network_of(SPEC, SPEC.side, weights)
    reports = run._check(network, SPEC, SPEC.graphs, folder, seed=1)
    assert list(reports) == ["parity", "memory_parity"]
    for report in reports.values():
        assert report.passed, report.reason
        for output, _, share, _ in report.summary():
            assert share <= ROUNDING, f"{output} is off by {share:.1e} of its deviation"
    written = json.loads(write_description(network, SPEC, tmp_path).read_text())
    kept = json.loads((folder / MEMORY_FILE).read_text())
    assert kept.pop("assembled")
    assert kept == written
    assert {path.name for path in folder.glob("*.onnx")} >= {ENCODER_FILE, DECODER_FILE, *MEMORY_GRAPHS}


def test_the_weights_are_those_of_the_published_graphs(
    checkpoint: Path, graphs: dict[Role, Path], photographs: Path
) -> None:
    """A network of them gives the published encoder's embeddings, at its own side."""
    import torch

    from triton_sam.export.checkpoint import network_of, read_checkpoint
    from triton_sam.export.checkpoint_keys import map_keys
    from triton_sam.export.wrappers import Encoder

    with Image.open(photographs / "coffee.png") as opened:
        picture = opened.convert("RGB")
    wanted = DirectSam2(graphs[Role.ENCODER], graphs[Role.DECODER]).features(picture)
    network = network_of(SPEC, 1024, map_keys(read_checkpoint(checkpoint)))
    pixels = np.asarray(picture.resize((1024, 1024), Image.Resampling.BILINEAR)).transpose(2, 0, 1)[None] / 255
    with torch.inference_mode():
        found = Encoder(network, SPEC.architecture)(torch.from_numpy(pixels.astype(np.float32)))
    for name, ours in zip(("image_embed", "high_res_feats_0", "high_res_feats_1"), found, strict=True):
        theirs = wanted[name]
        assert np.abs(ours.numpy() - theirs).max() <= 1e-2 * theirs.std(), name
        assert np.abs(ours.numpy() - theirs).mean() <= ROUNDING * theirs.std(), name


def test_the_recipes_are_what_the_exporter_writes(own_store: WeightStore, tmp_path: Path) -> None:
    """With the packages that they were made with; others may spell graphs differently."""
    from training.memory import graphs

    kept = bundled_path("memory/recipes")
    content = json.loads((kept / "weights.json").read_text())
    installed = {name: importlib.metadata.version(name) for name in content["made_with"]}
    differing = [name for name, version in content["made_with"].items() if installed[name] != version]
    if differing:
        pytest.skip(f"the recipes were made with another {', '.join(differing)}")
    published = graphs.published_table(graphs.published_graphs(SPEC, own_store), SPEC)
    graphs.make_recipes(SPEC, published, tmp_path)
    assert json.loads((tmp_path / "weights.json").read_text()) == content
    for name in graphs.GRAPHS:
        made, there = (lzma.decompress((each / f"{name}.xz").read_bytes()) for each in (tmp_path, kept))
        assert made == there, f"{name} has changed: run `python -m training.memory.graphs`"


def test_the_demonstration(embedded_server: None, own_store: WeightStore, tmp_path: Path) -> None:
    """`triton-sam demo --video` in a process without torch, and what it tells of its masks."""
    code = "import sys; sys.modules['torch'] = None; from triton_sam.cli import main; main()"
    words = ["demo", "--video", "--once", "--folder", str(tmp_path / "demo")]
    ports = [word for name in ("http", "grpc", "metrics", "service") for word in (f"--{name}-port", "0")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, *ports],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        env={**os.environ, "TRITON_SAM_HOME": str(own_store.home)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"serves {VIDEO_MODEL} as 'sam2_tiny_video'" in done.stdout
    told = done.stdout.replace("\n", " ")
    assert {"clip.mp4", "overlay.mp4", "frames.png"} == {path.name for path in (tmp_path / "demo").iterdir()}
    first, others = (float(told.partition(before)[2].split()[0]) for before in ("known masks: ", "first frame, "))
    assert first >= 0.9
    assert others >= 0.75
