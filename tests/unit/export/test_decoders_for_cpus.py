"""Decoders of every family are rewritten for CPUs whole, in our spelling and in that of the transformers at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.export.small import Small
from triton_sam.export import wrappers
from triton_sam.export.cpu_decoder import MOST_DIFFERENCE, make_cpu_decoder
from triton_sam.export.decoder_comparison import Trial, largest_difference
from triton_sam.export.onnx_files import export_graph
from triton_sam.export.run import decoder_inputs
from triton_sam.export.wrappers import Decoder

pytestmark = pytest.mark.torch

#: Not among those by which a decoder is judged when it is made.
OTHERS = [Trial(2, 17), Trial(1, 0, box=True), Trial(4, 3, box=True, mask=True, multimask=True)]
WHOLE = "5 attentions and 2 upscalings rewritten"


def in_transformers_spelling(
    transformer: Any, tokens: torch.Tensor, image: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the wrapper joins by itself, through the release's own code: as exports of older versions have it."""
    rows, places, channels = image.shape
    side = int(places**0.5)

    def as_pixels(rows_of: torch.Tensor) -> torch.Tensor:
        return rows_of.transpose(1, 2).reshape(-1, channels, side, side)

    tokens, image = transformer(
        point_embeddings=tokens.unsqueeze(1),
        image_embeddings=as_pixels(image),
        image_positional_embeddings=as_pixels(positions).expand(rows, -1, -1, -1),
        attention_similarity=None,
    )
    return tokens[:, 0], image[:, 0]


def check_whole(plain: Path, target: Path, family: Small) -> None:
    lines: list[str] = []
    made = make_cpu_decoder(plain, target, family.spec.graphs, lines.append)
    assert made == target
    assert WHOLE in lines[0]
    assert largest_difference(plain, target, family.spec.graphs, OTHERS) <= MOST_DIFFERENCE


def test_every_family(family: Small, tmp_path: Path) -> None:
    check_whole(family.folder / "decoder.onnx", tmp_path / "fast.onnx", family)


def test_every_family_in_the_spelling_of_transformers(
    family: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrappers, "run_two_way_transformer", in_transformers_spelling)
    plain, graphs = tmp_path / "decoder.onnx", family.spec.graphs
    outputs = {name: {0: "prompts", 1: "choices"} for name in (graphs.decoder.masks, graphs.decoder.scores)}
    export_graph(
        Decoder(family.network, family.spec.architecture),
        decoder_inputs(graphs, torch.device("cpu")),
        outputs,
        plain,
    )
    assert largest_difference(family.folder / "decoder.onnx", plain, graphs) <= MOST_DIFFERENCE
    check_whole(plain, tmp_path / "fast.onnx", family)
