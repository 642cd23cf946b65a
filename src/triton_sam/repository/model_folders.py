"""Reads and writes the folders of a model repository; each version is written atomically.

Everything is built in a hidden folder on the same file system and moved into place by one rename; removals use a rename
too. A version is moved in before its config is replaced, and a model refuses to load under a config that does not fit
it, so a writer that is killed in between leaves nothing that serves wrong masks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from triton_sam.core.concepts.traits import ConceptTraits
from triton_sam.errors import SetupError
from triton_sam.models.concept_traits import read_traits, traits_in
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import (
    ASSEMBLED,
    CONCEPT_FILES,
    CONCEPT_GRAPHS,
    CONCEPTS_FILE,
    CPU_DECODER_FILE,
    CPU_ENCODER_FILE,
    DECODER_FILE,
    EIGHT_BIT_ENCODER_FILE,
    ENCODER_FILE,
    EXTERNAL_DATA_SUFFIX,
    GRAPHS_FILE,
    MEMORY_FILE,
    MEMORY_GRAPHS,
    NETWORK_FILE,
    OLD_EIGHT_BIT_ENCODER_FILE,
    TEXT,
    ModelSpec,
    graphs_from_json,
)

CONFIG_FILE = "config.pbtxt"
#: Files of the segmenter's version that not every model has.
EXTRA_FILES = (
    CPU_ENCODER_FILE,
    EIGHT_BIT_ENCODER_FILE,
    OLD_EIGHT_BIT_ENCODER_FILE,
    CPU_DECODER_FILE,
    NETWORK_FILE,
    *MEMORY_GRAPHS,
    MEMORY_FILE,
    *CONCEPT_GRAPHS,
    *CONCEPT_FILES,
)
#: Files by which an engine is chosen; a version with more of them than requested is a different version.
_ENGINES_FILES = (ENCODER_FILE, DECODER_FILE, *EXTRA_FILES)
#: The previous version is kept, for a server that has to restart with it.
_VERSIONS_KEPT = 2

#: Name in a version folder -> a file to link there, or a text to write.
Files = Mapping[str, Path | str]


@dataclass(frozen=True, slots=True)
class ModelState:
    """The version and config that a server would load now.

    Attributes:
        version: number of the newest version.
        config: text of the config.
    """

    version: int
    config: str


def model_state(folder: Path) -> ModelState | None:
    """The state of a model's folder; None if there is nothing to load."""
    text, version = read_config(folder), newest_version(folder)
    return ModelState(version, text) if text is not None and version else None


def read_config(folder: Path) -> str | None:
    """The text of a model's config; None if it cannot be read."""
    try:
        return (folder / CONFIG_FILE).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def versions(folder: Path) -> list[int]:
    """The versions in a model's folder, oldest first; like Triton, only numbers that do not begin with 0."""
    try:
        names = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii() and name[0] != "0")


def newest_version(folder: Path) -> int:
    """The newest version's number; 0 if there is none."""
    return max(versions(folder), default=0)


def served_spec(row: ModelSpec, version_folder: Path) -> ModelSpec:
    """A catalogue row with the graphs, the memory and the concepts of a version; its own graphs if an older version
    does not say.

    SetupError if the description is damaged.
    """
    row = with_memory(row, (version_folder / MEMORY_FILE).is_file())
    row = with_concepts(row, traits_in(version_folder, row))
    if row.memory is not None and _is_assembled(version_folder):
        row = dataclasses.replace(row, memory=dataclasses.replace(row.memory, learned_corrections=False))
    try:
        text = (version_folder / GRAPHS_FILE).read_bytes()
    except FileNotFoundError:
        return row
    except OSError as error:
        raise SetupError(
            f"{version_folder / GRAPHS_FILE} cannot be read ({error.strerror}): check its permissions"
        ) from None
    try:
        return dataclasses.replace(row, graphs=graphs_from_json(text))
    except ValueError:
        raise SetupError(f"{version_folder / GRAPHS_FILE} is damaged: run `triton-sam setup {row.id}` again") from None


def _is_assembled(version_folder: Path) -> bool:
    """Whether the version has the memory of this package, which was trained without corrections."""
    try:
        return ASSEMBLED in json.loads((version_folder / MEMORY_FILE).read_bytes())
    except (OSError, ValueError):
        return False  # the engine says what is wrong with it


def with_memory(spec: ModelSpec, has_memory: bool) -> ModelSpec:
    """The model with the memory of its generation, or with none."""
    return dataclasses.replace(spec, memory=MEMORY_TRAITS.get(spec.architecture.generation) if has_memory else None)


def with_concepts(spec: ModelSpec, traits: ConceptTraits | None) -> ModelSpec:
    """The model with what finds concepts, or without; only then it takes text."""
    kinds = spec.prompts | {TEXT} if traits is not None else spec.prompts - {TEXT}
    return dataclasses.replace(spec, concepts=traits, prompts=kinds)


def with_parts(spec: ModelSpec, files: Mapping[str, Path]) -> ModelSpec:
    """The model with the parts that these files of a version have: a memory, and what finds concepts."""
    traits = read_traits(files[CONCEPTS_FILE], spec) if files.keys() >= set(CONCEPT_FILES) else None
    return with_concepts(with_memory(spec, MEMORY_FILE in files), traits)


def holds(version_folder: Path, files: Files) -> bool:
    """Whether a version has exactly these graphs and data, and the same description if it has one."""
    for name, content in files.items():
        there = version_folder / name
        if isinstance(content, str):
            if name == GRAPHS_FILE and there.is_file() and there.read_text() != content:
                return False
        elif not there.is_file() or not _same_content(there, content):
            return False
    data = {path.name for path in version_folder.glob(f"*{EXTERNAL_DATA_SUFFIX}")}
    others = {name for name in _ENGINES_FILES if (version_folder / name).is_file()}
    return data | others <= set(files)


def _same_content(first: Path, second: Path) -> bool:
    return first.samefile(second) or filecmp.cmp(first, second, shallow=False)


class RepositoryWriter:
    """Writes models to a repository, through a hidden folder beside it. Made by :func:`writing`."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository = repository
        self._folder = folder
        self._number = 0

    def new_path(self) -> Path:
        """An unused path on the repository's file system, deleted at the end of the writing."""
        self._number += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / str(self._number)

    def write_model(self, name: str, version: int, files: Files, config: str) -> None:
        """Writes ``files`` as ``version`` of a model, and ``config``; keeps one older version."""
        target = self.repository / name
        if not target.exists():
            building = self.new_path()
            _fill(building / str(version), files)
            (building / CONFIG_FILE).write_text(config)
            building.rename(target)
            return
        version_folder = target / str(version)
        if not version_folder.exists():
            building = self.new_path()
            _fill(building, files)
            building.rename(version_folder)
        for text_name, content in files.items():
            if isinstance(content, str):
                self._replace_text(version_folder / text_name, content)
        self._replace_text(target / CONFIG_FILE, config)
        for old in versions(target)[:-_VERSIONS_KEPT]:
            (target / str(old)).rename(self.new_path())

    def _replace_text(self, target: Path, text: str) -> None:
        """Replaces a file atomically, and only if it differs: Triton reloads a model whose files have a newer date."""
        if target.is_file() and target.read_text() == text:
            return
        written = self.new_path()
        written.write_text(text)
        written.replace(target)

    def copy_model(self, old: str, new: str, config: str) -> None:
        """Copies the model ``old`` to the name ``new``, in place of the model that has that name."""
        building = self.new_path()
        shutil.copytree(self.repository / old, building, copy_function=link_or_copy)
        (building / CONFIG_FILE).unlink()  # a link: writing into it would write into the old model
        (building / CONFIG_FILE).write_text(config)
        self.remove_model(new)
        building.rename(self.repository / new)

    def remove_model(self, name: str) -> None:
        """Removes a model from the repository, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            (self.repository / name).rename(self.new_path())


@contextlib.contextmanager
def writing(repository: Path) -> Iterator[RepositoryWriter]:
    """Locks a repository for one writing process; SetupError if it cannot be written."""
    try:
        repository.mkdir(parents=True, exist_ok=True)
        with _locked(repository) as is_locked:
            parent, prefix = _scratch_parent(repository), f".{repository.name}-writing-"
            if is_locked:
                for leftover in parent.iterdir():
                    if leftover.name.startswith(prefix):  # of a writer that was killed
                        shutil.rmtree(leftover, ignore_errors=True)
            folder = parent / f"{prefix}{os.getpid()}"
            try:
                yield RepositoryWriter(repository, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        reason = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        raise SetupError(f"cannot write models to {repository} ({reason}): choose a writable folder") from None


def _scratch_parent(repository: Path) -> Path:
    """The folder beside the repository, which no server reads; the repository itself if it is a mount point."""
    repository = repository.resolve()
    same_device = repository.parent.stat().st_dev == repository.stat().st_dev
    return repository.parent if same_device else repository


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Waits for other writers; yields False if the system or the file system has no such lock."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        is_locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


def _fill(folder: Path, files: Files) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        if isinstance(content, str):
            (folder / name).write_text(content)
        else:
            link_or_copy(content, folder / name)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Makes a hard link if the file system allows it, else a copy: a repository must not depend on other folders."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
