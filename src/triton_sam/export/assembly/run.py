"""Puts a model together: its checkpoint, and the files that an export of that checkpoint would leave."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from triton_sam.export.assembly.prepared import with_prepared
from triton_sam.export.assembly.published import published_weights
from triton_sam.export.assembly.recipes import Recipes
from triton_sam.export.assembly.tensor_files import Weights, read_weights, write_weights
from triton_sam.export.onnx_graph import replacing
from triton_sam.models.checksums import matches_checksum, write_checksum
from triton_sam.models.specs import ASSEMBLED, GRAPHS_FILE, MEMORY_FILE, ModelSpec, graphs_to_json

#: Increase it when the same files are put together differently.
RECIPE = 1
#: The whole model, under transformers' names: what torch makes other graphs and its own weights of.
CHECKPOINT_FILE = "checkpoint.safetensors"
#: Entries of :data:`~triton_sam.models.specs.MEMORY_FILE` -> weights.
_NUMBERS = {
    "mask_downsample_weight": "mask_downsample.weight",
    "mask_downsample_bias": "mask_downsample.bias",
    "no_object_pointer": "no_object_pointer",
    "no_memory_embedding": "no_memory_embedding",
}


def assembled(
    spec: ModelSpec,
    graphs: Mapping[str, Path],
    bundled: tuple[Path, Path],
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """The folder with the graphs of a model, as an export leaves them; they are made once.

    Args:
        graphs: "encoder" and "decoder" -> ONNX file with the published weights.
        bundled: the file of the other weights, and the folder of the recipes.
        folder: of all such models. That of this one is named after its content, and replaces others of it.
    """
    own = _folder(spec, bundled, folder)
    recipes = Recipes.read(bundled[1])
    names = (*recipes.graphs, MEMORY_FILE)
    if (own / GRAPHS_FILE).is_file() and all(matches_checksum(own / name) for name in names):
        return own
    say("putting its graphs together")
    weights = _weights(graphs, bundled[0], recipes)
    (own / GRAPHS_FILE).unlink(missing_ok=True)  # written last: without it nothing here counts
    prepared = with_prepared(weights, spec.decoder.mask_side // 4)
    for name in recipes.graphs:
        write_checksum(recipes.write_graph(name, prepared, own / name))
    write_checksum(_write_numbers(spec, weights, content_digest(spec, bundled), own / MEMORY_FILE))
    with replacing(own / GRAPHS_FILE) as partial:
        partial.write_text(graphs_to_json(spec.graphs))
    return own


def assembled_checkpoint(spec: ModelSpec, graphs: Mapping[str, Path], bundled: tuple[Path, Path], folder: Path) -> Path:
    """The whole model as a safetensors file, which is made once; arguments as those of :func:`assembled`."""
    path = _folder(spec, bundled, folder) / CHECKPOINT_FILE
    if not matches_checksum(path):
        write_checksum(write_weights(_weights(graphs, bundled[0], Recipes.read(bundled[1])), path))
    return path


def _weights(graphs: Mapping[str, Path], memory: Path, recipes: Recipes) -> Weights:
    return published_weights(graphs, recipes.published) | read_weights(memory)


def content_digest(spec: ModelSpec, bundled: tuple[Path, Path]) -> str:
    """Changes with everything that a model is put together of; its graphs' description keeps it."""
    weights, recipes = bundled
    digest = hashlib.sha256(f"{RECIPE} {' '.join(str(file.sha256) for file in spec.files)}\n".encode())
    for path in (weights, *Recipes.read(recipes).files()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _write_numbers(spec: ModelSpec, weights: Weights, digest: str, path: Path) -> Path:
    numbers = {entry: weights[name].ravel().tolist() for entry, name in _NUMBERS.items()}
    with replacing(path) as partial:
        partial.write_text(
            json.dumps({"generation": spec.architecture.generation, **numbers, ASSEMBLED: digest}) + "\n"
        )
    return path


def _folder(spec: ModelSpec, bundled: tuple[Path, Path], folder: Path) -> Path:
    """The folder for this content; folders of other content are removed."""
    own = folder / f"{spec.variant_name}-assembled-{content_digest(spec, bundled)}"
    for other in folder.glob(f"{spec.variant_name}-assembled-*"):
        if other != own:
            shutil.rmtree(other, ignore_errors=True)
    own.mkdir(parents=True, exist_ok=True)
    return own
