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
from triton_sam.models.concept_traits import concept_traits, traits_to_json
from triton_sam.models.specs import (
    ASSEMBLED,
    CONCEPT_FILES,
    CONCEPTS_FILE,
    GRAPHS_FILE,
    MEMORY_FILE,
    TOKENIZER_FILE,
    ModelSpec,
    graphs_to_json,
)

#: Increase it when the same files are put together differently.
RECIPE = 1
#: The whole model, under transformers' names: what torch makes other graphs and its own weights of.
CHECKPOINT_FILE = "checkpoint.safetensors"
#: Bundled files of a model that finds no concepts.
_WITHOUT_TOKENIZER = 2
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
    bundled: tuple[Path, ...],
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """The folder with the graphs of a model, as an export leaves them; they are made once.

    Args:
        graphs: "encoder" and "decoder" -> ONNX file with the published weights.
        bundled: the file of the other weights, the folder of the recipes and, of a model that finds concepts, the
            tokenizer.
        folder: of all such models. That of this one is named after its content, and replaces others of it.
    """
    own = _folder(spec, bundled, folder)
    recipes = Recipes.read(bundled[1])
    finds_concepts = len(bundled) > _WITHOUT_TOKENIZER
    names = (*recipes.graphs, *(CONCEPT_FILES if finds_concepts else (MEMORY_FILE,)))
    if (own / GRAPHS_FILE).is_file() and all(matches_checksum(own / name) for name in names):
        return own
    say("putting its graphs together")
    weights = _weights(graphs, bundled[0], recipes)
    (own / GRAPHS_FILE).unlink(missing_ok=True)  # written last: without it nothing here counts
    prepared = with_prepared(weights, spec.decoder.mask_side // 4)
    for name in recipes.graphs:
        write_checksum(recipes.write_graph(name, prepared, own / name))
    digest = content_digest(spec, bundled)
    if finds_concepts:
        write_checksum(_write_traits(spec, digest, own / CONCEPTS_FILE))
        write_checksum(Path(shutil.copyfile(bundled[_WITHOUT_TOKENIZER], own / TOKENIZER_FILE)))
    else:
        write_checksum(_write_numbers(spec, weights, digest, own / MEMORY_FILE))
    with replacing(own / GRAPHS_FILE) as partial:
        partial.write_text(graphs_to_json(spec.graphs))
    return own


def assembled_checkpoint(spec: ModelSpec, graphs: Mapping[str, Path], bundled: tuple[Path, ...], folder: Path) -> Path:
    """The whole model as a safetensors file, which is made once; arguments as those of :func:`assembled`.

    The tokenizer of a model that finds concepts is beside it.
    """
    path = _folder(spec, bundled, folder) / CHECKPOINT_FILE
    if not matches_checksum(path):
        write_checksum(write_weights(_weights(graphs, bundled[0], Recipes.read(bundled[1])), path))
    for tokenizer in bundled[_WITHOUT_TOKENIZER:]:
        shutil.copyfile(tokenizer, path.with_name(TOKENIZER_FILE))
    return path


def _weights(graphs: Mapping[str, Path], memory: Path, recipes: Recipes) -> Weights:
    return published_weights(graphs, recipes.published) | read_weights(memory)


def content_digest(spec: ModelSpec, bundled: tuple[Path, ...]) -> str:
    """Changes with everything that a model is put together of; its graphs' description keeps it."""
    weights, recipes, *others = bundled
    digest = hashlib.sha256(f"{RECIPE} {' '.join(str(file.sha256) for file in spec.files)}\n".encode())
    for path in (weights, *Recipes.read(recipes).files(), *others):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _write_numbers(spec: ModelSpec, weights: Weights, digest: str, path: Path) -> Path:
    numbers = {entry: weights[name].ravel().tolist() for entry, name in _NUMBERS.items()}
    with replacing(path) as partial:
        partial.write_text(
            json.dumps({"generation": spec.architecture.generation, **numbers, ASSEMBLED: digest}) + "\n"
        )
    return path


def _write_traits(spec: ModelSpec, digest: str, path: Path) -> Path:
    traits = json.loads(traits_to_json(concept_traits(spec.architecture, spec.side)))
    with replacing(path) as partial:
        partial.write_text(json.dumps({**traits, ASSEMBLED: digest}) + "\n")
    return path


def _folder(spec: ModelSpec, bundled: tuple[Path, ...], folder: Path) -> Path:
    """The folder for this content; folders of other content are removed."""
    own = folder / f"{spec.variant_name}-assembled-{content_digest(spec, bundled)}"
    for other in folder.glob(f"{spec.variant_name}-assembled-*"):
        if other != own:
            shutil.rmtree(other, ignore_errors=True)
    own.mkdir(parents=True, exist_ok=True)
    return own
