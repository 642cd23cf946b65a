"""Profiles: plain encoders under the exact names and tensors that other tools call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triton_sam.errors import InvalidInput
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import EXTERNAL_DATA_SUFFIX, Graphs, graphs_from_json
from triton_sam.models.weights import ProgressFactory, WeightStore
from triton_sam.repository.export_cache import ExportRequest, Say, export_model
from triton_sam.repository.segmenters import write_plain_model


@dataclass(frozen=True, slots=True)
class ProfileModel:
    """One encoder as a tool calls it.

    Attributes:
        name: the Triton model.
        model_id: the catalogue row of the encoder, which must fit the tool's own decoder.
        outputs: our name of an output -> the tool's.
        pixel_range: values of black and white in the tool's input.
        ready_made: a downloadable graph that needs no change; empty if there is none.
    """

    name: str
    model_id: str
    outputs: Mapping[str, str] = field(default_factory=dict)
    pixel_range: tuple[float, float] = (0.0, 1.0)
    ready_made: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether our own encoder needs no change."""
        return not self.outputs and self.pixel_range == (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """All models that one tool calls."""

    name: str
    title: str
    models: tuple[ProfileModel, ...]


PAINTERA = Profile(
    "paintera",
    "Paintera 1.14",
    (
        ProfileModel("sam1_encoder", "sam1:vit_h"),
        ProfileModel("sam2.1_large_encoder", "sam2.1:large", {"image_embeddings": "image_embed"}),
        ProfileModel(
            "sam3_tracker_encoder_fp16", "sam3:full", pixel_range=(-1.0, 1.0), ready_made="vision_encoder.onnx"
        ),
    ),
)
PROFILES = {profile.name: profile for profile in (PAINTERA,)}


def get_profile(name: str) -> Profile:
    """A profile by its name; InvalidInput with the known names otherwise."""
    try:
        return PROFILES[name]
    except KeyError:
        raise InvalidInput(f"there is no profile {name!r}: known are {', '.join(PROFILES)}") from None


def set_up_profile(
    profile: Profile,
    ids: Sequence[str] | None,
    store: WeightStore,
    repository: Path,
    progress: ProgressFactory,
    request: ExportRequest,
    say: Say = lambda _: None,
) -> list[str]:
    """Exports the models that a tool calls and writes them to a repository; returns the Triton names.

    Args:
        ids: only these models of the profile; None for all.
        request: options of the export; the user's own checkpoint goes with exactly one model.
    """
    chosen = [model for model in profile.models if ids is None or model.model_id in ids]
    unknown = sorted(set(ids or ()) - {model.model_id for model in profile.models})
    if unknown:
        known = ", ".join(model.model_id for model in profile.models)
        raise InvalidInput(f"{profile.title} does not call {unknown[0]}: it calls {known}")
    if request.checkpoint is not None and len(chosen) != 1:
        raise InvalidInput("--checkpoint goes with one model of a profile: name its id too")
    written = []
    for model in chosen:
        spec = get_spec(model.model_id)
        say(f"{model.name} from {model.model_id}")
        if model.ready_made and request.is_plain:
            graph = store.pull_plain(spec, progress) / model.ready_made
            _write(profile, model, spec.graphs, graph, repository)
        else:
            folder, _ = export_model(spec, store, request, progress, say=say)
            write_profile_model(profile, model, folder, repository)
        written.append(model.name)
    return written


def write_profile_model(profile: Profile, model: ProfileModel, folder: Path, repository: Path) -> None:
    """Writes the encoder of an export's folder under the tool's names."""
    graphs = graphs_from_json((folder / "graphs.json").read_bytes())
    ours, adapted = folder / "encoder.onnx", folder / f"{model.name}.onnx"
    if model.is_ours:
        _write(profile, model, graphs, ours, repository)
        return
    from triton_sam.export.encoder_adapter import adapt_encoder

    try:
        adapt_encoder(ours, adapted, outputs=model.outputs, pixel_range=model.pixel_range)
        _write(profile, model, graphs, adapted, repository)
    finally:  # the repository has its own link or copy
        adapted.unlink(missing_ok=True)
        adapted.with_name(adapted.name + EXTERNAL_DATA_SUFFIX).unlink(missing_ok=True)


def _write(profile: Profile, model: ProfileModel, graphs: Graphs, graph: Path, repository: Path) -> None:
    write_plain_model(
        model.name,
        graph,
        repository,
        inputs=[(graphs.encoder.image, "TYPE_FP32", [-1, 3, graphs.side, graphs.side])],
        outputs=[
            (model.outputs.get(name, name), "TYPE_FP32", [-1, *shape[1:]]) for name, shape in graphs.encoder.outputs
        ],
        profile=profile.name,
    )
