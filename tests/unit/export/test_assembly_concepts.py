"""The model of words that is part of this package is put together without torch, and equals its network."""

from __future__ import annotations

import importlib.metadata
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from tests.concept_models import write_small_tokenizer
from triton_sam.export.assembly.run import CHECKPOINT_FILE, assembled, assembled_checkpoint
from triton_sam.export.assembly.tensor_files import write_weights
from triton_sam.models.bundled import bundled_path
from triton_sam.models.catalog import get_spec
from triton_sam.models.catalog_sam3 import SHAPES_MODEL
from triton_sam.models.specs import CONCEPT_FILES, CONCEPT_GRAPHS, TOKENIZER_FILE
from triton_sam.repository.assembling import is_outdated
from triton_sam.repository.model_folders import served_spec

pytestmark = pytest.mark.torch

SPEC = get_spec(SHAPES_MODEL)
#: Share of an output's deviation by which rounding may differ.
ROUNDING = 1e-4


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random ones as the trained ones are kept: in half precision, and with those that nothing depends on."""
    import torch

    from triton_sam.export.random_weights import randomise
    from triton_sam.networks.segmenters import build

    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = build(SPEC.architecture, SPEC.side, concepts=True)
    randomise(network, 5)
    halves = {name: tensor.numpy().astype(np.float16) for name, tensor in network.state_dict().items()}
    halves["concepts.text_encoder.text_projection.weight"] = np.zeros((128, 128), np.float16)
    return write_weights(halves, tmp_path_factory.mktemp("weights") / "network.safetensors")


@pytest.fixture(scope="module")
def bundled(weights: Path) -> tuple[Path, ...]:
    return weights, bundled_path("concepts/recipes"), write_small_tokenizer(weights.parent)


@pytest.fixture(scope="module")
def folder(bundled: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return assembled(SPEC, {}, bundled, tmp_path_factory.mktemp("exports"))


def test_it_is_complete(folder: Path, bundled: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert {path.name for path in folder.iterdir()} >= {"encoder.onnx", "decoder.onnx", *CONCEPT_GRAPHS, *CONCEPT_FILES}
    served = served_spec(SPEC, folder)
    assert served.concepts is not None
    assert (served.concepts.side, served.concepts.queries, served.concepts.mask_side) == (24, 50, 96)
    assert "text" in served.prompts
    paths = dict(
        zip(("concepts/network.safetensors", "concepts/recipes", "concepts/tokenizer.json"), bundled, strict=True)
    )
    monkeypatch.setattr("triton_sam.repository.assembling.bundled_path", paths.__getitem__)
    assert not is_outdated(SPEC, folder)
    bundled[-1].write_text(bundled[-1].read_text() + "\n")
    assert is_outdated(SPEC, folder)


def test_its_graphs_are_those_of_an_export(folder: Path, bundled: tuple[Path, ...], tmp_path: Path) -> None:
    """As an export itself is checked against torch: clicks, texts of several lengths, and exemplars."""
    from triton_sam.export import run
    from triton_sam.export.checkpoint import network_of, read_checkpoint
    from triton_sam.export.checkpoint_keys import map_keys

    checkpoint = assembled_checkpoint(SPEC, {}, bundled, tmp_path)
    assert checkpoint.name == CHECKPOINT_FILE
    assert checkpoint.with_name(TOKENIZER_FILE).read_bytes() == bundled[-1].read_bytes()
    weights = map_keys(read_checkpoint(checkpoint))
    assert weights.unused == ["concepts.text_encoder.text_projection.weight"]
    network = network_of(SPEC, SPEC.side, weights)
    reports = run._check(network, SPEC, SPEC.graphs, folder, seed=1)
    assert list(reports) == ["parity", "concept_parity"]
    for report in reports.values():
        assert report.passed, report.reason
        for output, _, share, _ in report.summary():
            assert share <= ROUNDING, f"{output} is off by {share:.1e} of its deviation"


@pytest.mark.part("exports")
def test_the_recipes_are_what_the_exporter_writes(tmp_path: Path) -> None:
    """With the packages that they were made with; others may spell graphs differently."""
    from training.concepts import graphs

    kept = bundled_path("concepts/recipes")
    content = json.loads((kept / "weights.json").read_text())
    installed = {name: importlib.metadata.version(name) for name in content["made_with"]}
    differing = [name for name, version in content["made_with"].items() if installed[name] != version]
    if differing:
        pytest.skip(f"the recipes were made with another {', '.join(differing)}")
    graphs.make_recipes(SPEC, tmp_path)
    assert json.loads((tmp_path / "weights.json").read_text()) == content
    for name in graphs.GRAPHS:
        made, there = (lzma.decompress((each / f"{name}.xz").read_bytes()) for each in (tmp_path, kept))
        assert made == there, f"{name} has changed: run `python -m training.concepts.graphs`"


def test_sizes_are_those_of_the_training() -> None:
    from training.concepts.network import SIDE, SIZES
    from training.concepts.words import END, TOKENS, vocabulary

    built, concepts = SPEC.architecture, SPEC.architecture.concepts
    assert concepts is not None
    assert (SPEC.side, built.width, built.depths, built.heads) == (SIDE, SIZES.width, (SIZES.layers,), SIZES.heads)
    assert (built.global_blocks, built.windows, built.neck) == (SIZES.global_blocks, (SIZES.window,), SIZES.neck)
    assert (concepts.words, concepts.end_token) == (len(vocabulary()), vocabulary().index(END))
    text = (concepts.text_width, concepts.text_layers, concepts.text_heads, concepts.text_hidden, concepts.tokens)
    assert text == (SIZES.text_width, SIZES.text_layers, SIZES.text_heads, SIZES.text_mlp, TOKENS)
    layers = (concepts.geometry_layers, concepts.encoder_layers, concepts.decoder_layers, concepts.queries)
    assert layers == (SIZES.geometry_layers, SIZES.encoder_layers, SIZES.decoder_layers, SIZES.queries)
    assert (concepts.heads, concepts.hidden) == (SIZES.attention_heads, SIZES.ffn)
