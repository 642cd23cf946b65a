"""Chooses the models to serve, and sets up those that are missing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, FAMILY_DEFAULTS, get_spec
from triton_sam.models.specs import EIGHT_BIT_ENCODER_FILE, OLD_EIGHT_BIT_ENCODER_FILE, ModelSpec
from triton_sam.models.vlm_catalog import get_vlm, is_vlm
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.models.weights import ProgressFactory, WeightStore, silent
from triton_sam.repository.assembling import is_outdated
from triton_sam.repository.availability import ModelFacts, shortfall, survey
from triton_sam.repository.model_folders import newest_version
from triton_sam.repository.segmenters import (
    find_name,
    find_profile_models,
    find_segmenters,
    has_file,
    is_current,
    is_exported,
    refresh,
)
from triton_sam.repository.setup import SetupRequest, set_up
from triton_sam.repository.vlms import find_vlms, is_current_vlm, own_checkpoint, write_vlm
from triton_sam.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelSelection:
    """The models to serve from one repository; the keys are Triton names."""

    repository: Path
    segmenters: dict[str, ModelSpec]
    vlms: dict[str, VlmSpec] = field(default_factory=dict)
    """One name for each, the one of whole responses; streams come under ``stream_name`` of the row."""


def prepare(
    ids: Sequence[str], settings: Settings, repository: Path | None, progress: ProgressFactory | None = None
) -> ModelSelection:
    """Chooses the models of ``ids``, or all that are set up, and sets up those that are not.

    A family's name is the model that has it in the repository, or else the family's default.
    The weights of a vision-language model are downloaded at its first request, not here. A repository of the user's own
    is read, never written. One that only holds models for other tools gives an empty selection.
    """
    named = find_segmenters(repository or settings.repository)
    ids = [_id_of(name, named) if name in FAMILY_DEFAULTS else name for name in ids]
    vlms = [get_vlm(name) for name in ids if is_vlm(name)]
    specs = [get_spec(name) for name in ids if not is_vlm(name)] if repository is None else []
    facts = survey(settings, repository)
    for model_id in (*(spec.id for spec in specs), *(vlm.id for vlm in vlms)):
        _refuse_without_packages(facts[model_id])  # before anything is written
    ids = [name for name in ids if not is_vlm(name)]
    if repository is not None:
        return _select(repository, ids, vlms, facts)
    repository = settings.repository
    chosen = list(ids)
    if not ids and not vlms:
        found_vlms = find_vlms(repository).values()
        there = [spec.id for spec in named.values()]
        runnable = _runnable([*there, *(vlm.id for vlm in found_vlms)], facts)
        chosen = [name for name in runnable if not is_vlm(name)]
        vlms = [vlm for vlm in found_vlms if vlm.id in runnable]
        if not (chosen or vlms or find_profile_models(repository)):
            chosen = [DEFAULT_MODEL]
            _refuse_without_packages(facts[DEFAULT_MODEL])
    specs = [get_spec(model_id) for model_id in dict.fromkeys(chosen)]
    for spec in specs:
        _bring_up_to_date(spec, repository, settings, progress)
    for vlm in vlms:
        if not is_current_vlm(vlm, repository):
            write_vlm(vlm, repository, own_checkpoint(vlm, repository))
    found = find_segmenters(repository)
    names = [find_name(spec, repository) for spec in specs]
    segmenters = {name: found[name] for name in names if name in found}
    return ModelSelection(repository, segmenters, {vlm.name: vlm for vlm in vlms})


def _id_of(family: str, named: Mapping[str, ModelSpec]) -> str:
    return named[family].id if family in named else FAMILY_DEFAULTS[family]


def _select(
    repository: Path, ids: Sequence[str], vlms: Sequence[VlmSpec], facts: Mapping[str, ModelFacts]
) -> ModelSelection:
    """The models of a repository as they are, all of them if none is named; SetupError if one is missing."""
    everything = not ids and not vlms
    segmenters = {n: spec for n, spec in find_segmenters(repository).items() if everything or spec.id in ids}
    found_vlms = {n: spec for n, spec in find_vlms(repository).items() if everything or spec in vlms}
    found = [*(spec.id for spec in segmenters.values()), *(spec.id for spec in found_vlms.values())]
    missing = sorted({*ids, *(spec.id for spec in vlms)} - set(found))
    if missing or not (segmenters or found_vlms or find_profile_models(repository)):
        raise SetupError(
            f"{repository} has no model {missing[0] if missing else 'of triton-sam'}: "
            f"run `triton-sam setup {missing[0] if missing else DEFAULT_MODEL} --model-repository {repository}`"
        )
    if everything:
        runnable = _runnable(found, facts)
        segmenters = {name: spec for name, spec in segmenters.items() if spec.id in runnable}
        found_vlms = {name: spec for name, spec in found_vlms.items() if spec.id in runnable}
    return ModelSelection(repository, segmenters, found_vlms)


def _bring_up_to_date(spec: ModelSpec, repository: Path, settings: Settings, progress: ProgressFactory | None) -> None:
    """Writes a model if it is missing, was written by another version of this code, or lacks a requested encoder."""
    store = WeightStore(settings.home)
    ready_made = spec.ready_made and not is_exported(spec, repository)
    fast = has_file(spec, repository, EIGHT_BIT_ENCODER_FILE)
    older_fast = has_file(spec, repository, OLD_EIGHT_BIT_ENCODER_FILE)
    wanted = bool(settings.fast_encoder) and ready_made and not (fast or older_fast)
    outdated = _is_outdated(spec, repository)
    if is_current(spec, repository) and not (wanted or outdated):
        return
    # Ready-made models whose files are cached are set up again: this version may make graphs that the other did not.
    # Others are rewritten from their own graphs if possible: they may be exports of which there is no other copy.
    if not (outdated or (ready_made and store.is_installed(spec))) and refresh(spec, repository):
        return
    set_up(
        SetupRequest(
            spec,
            store,
            repository,
            progress or silent,
            cpu_encoder=settings.cpu_encoder,
            fast_encoder=fast or bool(settings.fast_encoder),
            fast_decoder=settings.fast_decoder,
        )
    )


def _is_outdated(spec: ModelSpec, repository: Path) -> bool:
    name = find_name(spec, repository)
    return name is not None and is_outdated(spec, repository / name / str(newest_version(repository / name)))


def _refuse_without_packages(facts: ModelFacts) -> None:
    """SetupError for a model that was named and whose packages are missing."""
    if facts.to_run is not None:
        raise SetupError(shortfall(facts))


def _runnable(ids: Sequence[str], facts: Mapping[str, ModelFacts]) -> list[str]:
    """Those whose packages are installed. Nobody named the others, so they are left out with a warning.

    SetupError if none is left: another model than those that were set up would be a surprise.
    """
    lacking = [model_id for model_id in ids if facts[model_id].to_run is not None]
    if lacking and len(lacking) == len(ids):
        raise SetupError(shortfall(facts[lacking[0]]))
    for model_id in lacking:
        log.warning("left out: %s", shortfall(facts[model_id]))
    return [model_id for model_id in ids if model_id not in lacking]
