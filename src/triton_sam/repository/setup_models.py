"""Sets up or removes models by the names that users type, as ``triton-sam setup`` and ``models rm`` do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triton_sam.errors import InvalidInput
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec, resolve_ids
from triton_sam.models.specs import EngineChoice, ModelSpec
from triton_sam.models.vlm_catalog import get_vlm, is_vlm
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.models.vlm_weights import VlmStore
from triton_sam.models.weights import ProgressContext, WeightStore
from triton_sam.repository.availability import advice, state_clause, survey
from triton_sam.repository.export_cache import ExportRequest
from triton_sam.repository.profiles import get_profile, set_up_profile
from triton_sam.repository.setup import SetupRequest, set_up, uninstall
from triton_sam.repository.vlms import remove_vlm, write_vlm
from triton_sam.settings import Settings

#: Called with (model, step) while a set-up is in progress.
StepCallback = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class SetupChoice:
    """The models that a user wants to set up, and the options for all of them."""

    names: Sequence[str] = ()
    """Ids (``sam2:tiny``, ``vlm:llava``), families or ``all``."""
    repository: Path | None = None
    """None: the one below TRITON_SAM_HOME."""
    profile: str | None = None
    """Name of another tool whose models are written instead."""
    export: ExportRequest = field(default_factory=ExportRequest)
    engine: EngineChoice = EngineChoice.AUTO
    fast: bool = False
    """Whether to add the encoder for CPUs that is partly in 8 bits."""


def set_up_models(
    choice: SetupChoice, settings: Settings, progress: ProgressContext, on_step: StepCallback
) -> Iterator[str]:
    """Sets up models one after the other and yields a sentence for each; all names are checked before the first.

    Args:
        progress: shows downloads; closed before a sentence is yielded.
    """
    repository = choice.repository or settings.repository
    if choice.fast:
        _check_fast(choice)
    if choice.profile is not None:
        yield _set_up_profile(choice, choice.profile, repository, settings, progress, on_step)
        return
    specs, vlms = _resolve(choice)
    for vlm in vlms:  # the folders only: weights are downloaded at the first request
        yield _outcome(vlm.id, write_vlm(vlm, repository, choice.export.checkpoint), repository, settings)
    families = [name for name in choice.names if ":" not in name and not is_vlm(name)]
    named_by_family = {spec.id for spec in resolve_ids(families)}
    for spec in specs:
        with progress() as report:
            written = set_up(
                SetupRequest(
                    spec,
                    WeightStore(settings.home),
                    repository,
                    report,
                    export=choice.export,
                    make_default=spec.id in named_by_family,
                    engine=choice.engine,
                    cpu_encoder=settings.cpu_encoder,
                    fast_encoder=choice.fast or bool(settings.fast_encoder),
                    fast_decoder=settings.fast_decoder,
                    say=lambda step, model=spec.id: on_step(model, step),  # type: ignore[misc]
                )
            )
        yield _outcome(spec.id, written, repository, settings)


def _resolve(choice: SetupChoice) -> tuple[list[ModelSpec], list[VlmSpec]]:
    """The rows of the names; InvalidInput if there are none, or if the options do not suit them."""
    if not choice.names:
        raise InvalidInput("name what to set up: an id such as sam2:tiny, a family (sam1, sam2, sam3) or all")
    vlms = [get_vlm(name) for name in dict.fromkeys(choice.names) if is_vlm(name)]
    specs = resolve_ids([name for name in choice.names if not is_vlm(name)])
    export = choice.export
    if export.checkpoint is not None and len(specs) + len(vlms) != 1:
        raise InvalidInput("--checkpoint goes with one model: name only that")
    if vlms and (export != ExportRequest(export.checkpoint) or choice.engine is not EngineChoice.AUTO):
        options = "--image-size, --device, --precision, --seed and --engine"
        raise InvalidInput(f"{vlms[0].id} is served as it is: leave {options} out")
    return specs, vlms


def _check_fast(choice: SetupChoice) -> None:
    """InvalidInput if none of the named models has an encoder in 8 bits."""
    specs = resolve_ids([name for name in choice.names if not is_vlm(name)])
    if choice.profile is not None or not choice.export.is_plain or not any(spec.ready_made for spec in specs):
        raise InvalidInput(f"--fast is for ready-made models such as {DEFAULT_MODEL}: leave it out here")


def _set_up_profile(
    choice: SetupChoice,
    name: str,
    repository: Path,
    settings: Settings,
    progress: ProgressContext,
    on_step: StepCallback,
) -> str:
    profile = get_profile(name)
    for model in choice.names:
        if is_vlm(model):
            raise InvalidInput(f"{profile.title} does not call {get_vlm(model).id}: leave it out")
    ids = [spec.id for spec in resolve_ids(list(choice.names))] or None
    store = WeightStore(settings.home)
    with progress() as report:
        written = set_up_profile(
            profile, ids, store, repository, report, choice.export, lambda step: on_step(name, step)
        )
    return f"ready for {profile.title}: {', '.join(written)} in {repository}"


def _outcome(model_id: str, written: Sequence[str], repository: Path, settings: Settings) -> str:
    """How far the model is now, and what comes next."""
    facts = survey(settings, repository)[model_id]
    line = f"{model_id} {state_clause(facts)}: {', '.join(written)} in {repository}; {advice(facts)}"
    return f"{line}; `triton-sam pull {model_id}` downloads them now" if facts.first_use_bytes else line


def remove_model(model_id: str, settings: Settings) -> str:
    """Removes a model's files and repository folders and returns a sentence about it."""
    if is_vlm(model_id):
        return _remove_vlm(get_vlm(model_id), settings)
    freed = uninstall(get_spec(model_id), WeightStore(settings.home), settings.repository)
    return f"removed {model_id}, {freed / 1e6:.0f} MB are free again" if freed else f"{model_id} was not installed"


def _remove_vlm(vlm: VlmSpec, settings: Settings) -> str:
    store = VlmStore(settings.home)
    freed = store.remove(vlm)
    removed = remove_vlm(vlm, settings.repository)
    if freed:
        return f"removed {vlm.id}, {freed / 1e6:.0f} MB are free again"
    if vlm.source is not None and store.is_installed(vlm):
        kept = "`triton-sam pull` did not download its files, so they stay in the Hub's cache"
        return f"{vlm.id} is no longer served; {kept}"
    return f"removed {', '.join(removed)}" if removed else f"{vlm.id} was not installed"
