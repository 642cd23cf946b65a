"""The checkpoints of vision-language models: a user's folder, the one in this package, or the Hub's own cache.

Files from the Hub stay in the Hub's cache, where other tools find them. ``TRITON_SAM_HOME/vlm/<name>.json`` records
which of them were verified, with sizes and dates, so that gigabytes are hashed once and not at every start.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from triton_sam.errors import SetupError, WeightsError
from triton_sam.models.fetch.http import Progress
from triton_sam.models.fetch.snapshot import (
    CONFIG_FILE,
    drop_wrong_files,
    fetch_snapshot,
    find_snapshot,
    missing_files,
    remove_snapshot,
    snapshot_files,
)
from triton_sam.models.specs import ModelFile, Role
from triton_sam.models.vlm_specs import HubSnapshot, VlmSpec
from triton_sam.models.weights import ProgressFactory, locked, silent
from triton_sam.settings import get_settings

log = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parents[1]


def checkpoint_folder(spec: VlmSpec, checkpoint: str = "") -> Path:
    """The folder from which a server's process loads a model, downloaded if necessary.

    Args:
        checkpoint: a user's own folder; "" for the catalogue's.
    """
    if checkpoint:
        return user_folder(spec, Path(checkpoint))
    store = VlmStore(get_settings().home)
    return store.find(spec) or store.pull(spec)


def part_folders(spec: VlmSpec, checkpoint: str = "") -> dict[str, Path]:
    """Repository -> local folder of each further repository that the checkpoint's code needs.

    Args:
        checkpoint: a user's own folder, which may have them as folders named after the repositories.
    """
    folders = {part.repo: Path(checkpoint) / _short(part) for part in spec.parts}
    if checkpoint and all(folder.is_dir() for folder in folders.values()):
        return folders
    return VlmStore(get_settings().home).parts(spec)


def user_folder(spec: VlmSpec, folder: Path) -> Path:
    """A user's folder as an absolute path; SetupError if it is not a complete checkpoint."""
    folder = folder.expanduser().absolute()
    if not folder.is_dir():
        raise SetupError(f"there is no folder {folder}: name one with a checkpoint of {spec.id}")
    missing = missing_files(folder)
    if missing:
        fix = "name a folder as the Hub or save_pretrained has it"
        if missing[0] != CONFIG_FILE:
            fix += "; weights must be .safetensors, because other files may carry code"
        raise SetupError(f"{folder} has no {missing[0]}, so it is no checkpoint of {spec.id}: {fix}")
    return folder


def bundled_folder(spec: VlmSpec) -> Path:
    """The checkpoint in this package or in its checkout."""
    folders = (_PACKAGE / "bundled" / spec.name, _PACKAGE.parent.parent / "training" / spec.name / "model")
    for folder in folders:
        if (folder / CONFIG_FILE).is_file():
            return folder
    raise SetupError(f"the checkpoint of {spec.id} is not in this installation: reinstall triton-sam")


class VlmStore:
    """The checkpoints of the catalogue, with records of their verification below one home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def is_installed(self, spec: VlmSpec) -> bool:
        """Whether all files exist, verified or not; quick, and without a network."""
        return all(
            self._noted(name, source) is not None or find_snapshot(source) is not None
            for name, source in _sources(spec).items()
        )

    def find(self, spec: VlmSpec, progress: ProgressFactory = silent) -> Path | None:
        """The verified checkpoint; None if a part of it must be downloaded. Uses no network.

        Files that another tool has downloaded are verified now; a wrong file is deleted.
        """
        if spec.source is None:
            return bundled_folder(spec)
        found = self._find_all(spec, _sources(spec), progress)
        return None if found is None else found[spec.source.repo]

    def pull(self, spec: VlmSpec, progress: ProgressFactory = silent) -> Path:
        """The verified checkpoint, downloaded if it is missing; WeightsError with the reason and the fix."""
        if spec.source is None:
            return bundled_folder(spec)
        return self._pull_all(spec, _sources(spec), progress)[spec.source.repo]

    def parts(self, spec: VlmSpec) -> dict[str, Path]:
        """Repository -> verified folder of each further repository that the checkpoint's code needs."""
        return self._pull_all(spec, _parts(spec), silent)

    def remove(self, spec: VlmSpec) -> int:
        """Deletes the files that :meth:`pull` downloaded and returns their bytes; files of other tools stay."""
        freed = 0
        for name in _sources(spec):
            note = self._read_note(name)
            if note is not None:
                with self._locked(spec):
                    freed += remove_snapshot(Path(note["folder"])) if note.get("downloaded") else 0
                    self._note_file(name).unlink(missing_ok=True)
        return freed

    def _find_all(
        self, spec: VlmSpec, sources: Mapping[str, HubSnapshot], progress: ProgressFactory
    ) -> dict[str, Path] | None:
        """Repository -> folder of the sources; None if one of them is missing."""
        found = {}
        for name, source in sources.items():
            folder = self._noted(name, source) or self._verified(spec, name, source, progress)
            if folder is None:
                return None
            found[source.repo] = folder
        return found

    def _verified(self, spec: VlmSpec, name: str, source: HubSnapshot, progress: ProgressFactory) -> Path | None:
        """The folder in the Hub's cache after verification; None if files are missing or wrong."""
        folder = find_snapshot(source)
        if folder is None:
            return None
        with self._locked(spec):
            wrong = drop_wrong_files(folder, source, _step(spec, progress, "verify"))
            if not wrong:
                self._note(name, source, folder, downloaded=self._was_downloaded(name, folder))
                return folder
        log.warning("%s: %s", spec.id, "; ".join(wrong.values()))
        return None

    def _pull_all(
        self, spec: VlmSpec, sources: Mapping[str, HubSnapshot], progress: ProgressFactory
    ) -> dict[str, Path]:
        found = self._find_all(spec, sources, progress)
        if found is not None:
            return found
        folders = {}
        with self._locked(spec):
            for name, source in sources.items():
                noted = self._noted(name, source)  # another process may have downloaded it meanwhile
                folders[source.repo] = noted or self._fetch(spec, name, source, progress)
        return folders

    def _fetch(self, spec: VlmSpec, name: str, source: HubSnapshot, progress: ProgressFactory) -> Path:
        size = spec.size if source == spec.source else 0
        try:
            folder = fetch_snapshot(source, size, lambda step: _step(spec, progress, step))
        except WeightsError as error:
            raise WeightsError(
                f"{spec.id} could not be downloaded; Hugging Face {source.repo} {source.revision}: {error}; "
                f"`triton-sam pull {spec.id}` fills the cache while there is a network, "
                f"`triton-sam setup {spec.id} --checkpoint FOLDER` takes a folder of your own"
            ) from None
        self._note(name, source, folder, downloaded=True)
        return folder

    # -- notes ------------------------------------------------------------------------------------------------

    def _note_file(self, name: str) -> Path:
        return self.home / "vlm" / f"{name}.json"

    def _read_note(self, name: str) -> dict[str, Any] | None:
        try:
            note = json.loads(self._note_file(name).read_bytes())
        except (OSError, ValueError):
            return None
        fits = isinstance(note, dict) and isinstance(note.get("folder"), str) and isinstance(note.get("files"), dict)
        return note if fits else None

    def _noted(self, name: str, source: HubSnapshot) -> Path | None:
        """The folder of a note, if the note is for this source and no file has changed since the verification."""
        note = self._read_note(name)
        if note is None or note.get("source") != _described(source):
            return None
        folder = Path(note["folder"])
        return folder if note["files"] and note["files"] == _state_of(folder, source) else None

    def _was_downloaded(self, name: str, folder: Path) -> bool:
        note = self._read_note(name)
        return note is not None and bool(note.get("downloaded")) and note["folder"] == str(folder)

    def _note(self, name: str, source: HubSnapshot, folder: Path, *, downloaded: bool) -> None:
        note = {
            "source": _described(source),
            "folder": str(folder),
            "downloaded": downloaded,
            "files": _state_of(folder, source),
        }
        file = self._note_file(name)
        with contextlib.suppress(OSError):  # it only saves time
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".part")
            partial.write_text(json.dumps(note, indent=1) + "\n")
            partial.replace(file)

    @contextlib.contextmanager
    def _locked(self, spec: VlmSpec) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.home, spec.id))
            except OSError as error:
                raise WeightsError(
                    f"cannot write to {self.home} ({error.strerror}): set TRITON_SAM_HOME to a writable folder"
                ) from None
            yield


def _sources(spec: VlmSpec) -> dict[str, HubSnapshot]:
    """Name of the note -> source; none for a model that comes with this package."""
    return {} if spec.source is None else {spec.name: spec.source, **_parts(spec)}


def _parts(spec: VlmSpec) -> dict[str, HubSnapshot]:
    return {f"{spec.name}-{_short(part)}": part for part in spec.parts}


def _short(source: HubSnapshot) -> str:
    return source.repo.rpartition("/")[2]


def _described(source: HubSnapshot) -> list[Any]:
    return [source.repo, source.revision, list(source.files)]


def _state_of(folder: Path, source: HubSnapshot) -> dict[str, list[int]]:
    """File -> size and time of change; broken links are left out."""
    state = {}
    for path in snapshot_files(folder, source):
        with contextlib.suppress(OSError):
            stat = path.stat()
            state[path.relative_to(folder).as_posix()] = [stat.st_size, stat.st_mtime_ns]
    return state


def _step(spec: VlmSpec, progress: ProgressFactory, step: str) -> Progress:
    return progress(ModelFile(Role.CHECKPOINT, spec.id, spec.size, None, ()), step)
