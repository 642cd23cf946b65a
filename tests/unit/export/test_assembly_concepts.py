"""The model of words that is part of this package is put together without torch, and equals its network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.concept_models import write_small_tokenizer
from triton_sam.export.assembly.run import CHECKPOINT_FILE, assembled, assembled_checkpoint
from triton_sam.export.assembly.tensor_files import read_weights, write_weights
from triton_sam.models.bundled import bundled_path
from triton_sam.models.catalog import get_spec
from triton_sam.models.catalog_sam3 import SHAPES_MODEL
from triton_sam.models.specs import CONCEPT_FILES, CONCEPT_GRAPHS
from triton_sam.repository.assembling import is_outdated
from triton_sam.repository.model_folders import served_spec

SPEC = get_spec(SHAPES_MODEL)


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


@pytest.mark.torch
def test_its_graphs_equal_its_network(folder: Path, bundled: tuple[Path, ...], tmp_path: Path) -> None:
    import torch

    from tests.unit.export.small import assert_close, drawn_pixels, session
    from triton_sam.export.wrappers import Encoder
    from triton_sam.networks.segmenters import load_layers

    checkpoint = assembled_checkpoint(SPEC, {}, bundled, tmp_path)
    assert checkpoint.name == CHECKPOINT_FILE
    tensors = {name: torch.from_numpy(array.copy()) for name, array in read_weights(checkpoint).items()}
    network = load_layers(SPEC.architecture, SPEC.side, tensors)
    pixels = drawn_pixels(SPEC.side, 1)
    ids = torch.tensor([[129, 5, 7, 130] + [130] * 28, [129, 9, 130] + [130] * 29])
    mask = (torch.arange(32) < torch.tensor([[4], [3]])).long()
    boxes, labels = torch.tensor([[[0.3, 0.4, 0.3, 0.5]]] * 2), torch.tensor([[1], [-10]])
    with torch.no_grad():
        wanted = Encoder(network, SPEC.architecture)(torch.from_numpy(pixels))
        text = network.concepts.read(ids, mask)
        found = network.concepts(wanted[-1], text, mask, boxes, labels)
    encoded = session(folder / "encoder.onnx").run(None, {"pixel_values": pixels})
    for mine, tensor in zip(encoded, wanted, strict=True):
        assert_close(mine, tensor.numpy())
    (read,) = session(folder / "text_encoder.onnx").run(
        None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    )
    assert_close(read, text.numpy())
    feeds = {
        "backbone_features": encoded[-1],
        "text_features": read,
        "text_mask": mask.numpy(),
        "boxes": boxes.numpy(),
        "box_labels": labels.numpy(),
    }
    for mine, tensor in zip(session(folder / "detector.onnx").run(None, feeds), found, strict=True):
        assert np.abs(mine - tensor.numpy()).max() <= 1e-3 * max(float(tensor.std()), 1e-2)


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
