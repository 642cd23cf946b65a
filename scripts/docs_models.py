"""Generated parts of the documentation about models: the catalogues and the profiles for other tools."""

from __future__ import annotations

import math
from collections.abc import Callable

from docs_figures import document

from triton_sam.models.catalog import CATALOG
from triton_sam.models.concept_traits import concept_traits
from triton_sam.models.specs import ModelSpec, exported_graphs, raw_graphs
from triton_sam.models.vlm_catalog import VLM_CATALOG
from triton_sam.repository.profiles import PROFILES


def models_table() -> str:
    """The catalogue."""
    measured = document("exports")["figures"]
    rows = [
        "| id | input | embeddings | a cached image | parameters | download | memory, serving | licence | best for |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for spec in CATALOG.values():
        shapes = "<br>".join(f"{name} {_shape(shape)}" for name, shape in raw_graphs(spec).encoder.outputs)
        # The ready-made graphs are the same network, so the measurement of its export holds for them too.
        memory = f"{measured[spec.id]['serve_gib']:.1f} GiB" if spec.id in measured else "not measured"
        size = "none" if spec.embedded else f"{spec.size / 1e6:.0f} MB"
        rows.append(
            f"| `{spec.id}` | {spec.side} px, {spec.resize.value} | {shapes} | {_cached(spec)} | "
            f"{spec.parameters:.1f} M | {size} | {memory} | {spec.licence} | {spec.best_for} |"
        )
    return "\n".join(rows) + "\n"


def _cached(spec: ModelSpec) -> str:
    """What the embedding cache keeps of an image in float32, and what words add to it."""
    plain = 4 * sum(math.prod(shape) for _, shape in spec.encoder.outputs) / 1e6
    if spec.architecture.concepts is None:
        return f"{plain:.1f} MB"
    traits = concept_traits(spec.architecture, spec.side)
    return f"{plain:.1f} MB, with words {plain + 4 * traits.channels * traits.side**2 / 1e6:.1f} MB"


def vlms_table() -> str:
    """The catalogue of vision-language models."""
    rows = [
        "| id | Triton names | parameters | download | licence | repository | best for |",
        "|---|---|---|---|---|---|---|",
    ]
    for spec in VLM_CATALOG.values():
        sources = [] if spec.source is None else [spec.source, *spec.parts]
        repositories = "<br>".join(f"{source.repo} at `{source.revision[:12]}`" for source in sources)
        parameters = f"{spec.parameters:.1f} M" if spec.parameters < 1000 else f"{spec.parameters / 1000:.2f} B"
        size = f"{spec.size / 1e9:.2f} GB" if sources else f"none, {spec.size / 1e6:.0f} MB in the package"
        rows.append(
            f"| `{spec.id}` | `{spec.name}`, `{spec.stream_name}` | {parameters} | {size} | {spec.licence} | "
            f"{repositories or 'this one, `training/shapes`'} | {spec.best_for} |"
        )
    return "\n".join(rows) + "\n"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape[1:]))


def profiles_table() -> str:
    """The models of the profiles for other tools."""
    rows = ["| tool | Triton model | encoder of | input | outputs |", "|---|---|---|---|---|"]
    for profile in PROFILES.values():
        for model in profile.models:
            graphs = exported_graphs(CATALOG[model.model_id].architecture, CATALOG[model.model_id].side)
            outputs = "<br>".join(
                f"{model.outputs.get(name, name)} {_shape(shape)}" for name, shape in graphs.encoder.outputs
            )
            low, high = model.pixel_range
            image = f"{graphs.encoder.image} 3x{graphs.side}x{graphs.side} in [{low:g}, {high:g}]"
            rows.append(f"| {profile.title} | `{model.name}` | `{model.model_id}` | {image} | {outputs} |")
    return "\n".join(rows) + "\n"


#: The parts by the names that the pages use.
PARTS: dict[str, Callable[[], str]] = {"models": models_table, "vlms": vlms_table, "profiles": profiles_table}
