"""Writes the recipes of the graphs that ``triton-sam setup sam3:shapes`` puts together without torch.

``python -m training.concepts.graphs`` exports a network of the model's architecture with random weights, twice, and
takes the weights out: see :mod:`training.recipes`. Run it again when the exporter changes (``EXPORTER`` in
``triton_sam/export/run.py``), or the sizes of the network.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from training.recipes import SEEDS, write_recipes
from triton_sam.export.assembly.prepared import with_prepared
from triton_sam.export.random_weights import randomise
from triton_sam.export.run import write_graphs
from triton_sam.models.catalog import get_spec
from triton_sam.models.catalog_sam3 import SHAPES_MODEL
from triton_sam.models.specs import CONCEPT_GRAPHS, DECODER_FILE, ENCODER_FILE, ModelSpec
from triton_sam.networks.segmenters import build

FOLDER = Path(__file__).resolve().parent / "recipes"
GRAPHS = (ENCODER_FILE, DECODER_FILE, *CONCEPT_GRAPHS)


def make_recipes(spec: ModelSpec, folder: Path) -> None:
    """Writes the recipes of a model's graphs into ``folder``."""
    with tempfile.TemporaryDirectory() as scratch:
        exports = [export(spec, seed, Path(scratch) / str(seed)) for seed in SEEDS]
        weights = with_prepared(exports[0][1], spec.decoder.mask_side // 4)
        write_recipes([written for written, _ in exports], GRAPHS, weights, folder, side=spec.side, keep_tables=True)


def export(spec: ModelSpec, seed: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Exports random weights; the folder, and the weights."""
    folder.mkdir()
    network = build(spec.architecture, spec.side, concepts=True)
    randomise(network, seed)
    write_graphs(network, spec, spec.graphs, folder)
    return folder, {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    make_recipes(get_spec(SHAPES_MODEL), parser.parse_args().folder)


if __name__ == "__main__":
    main()
