"""The folders of a model repository as files: versions come in whole or not at all, whatever kills the writer.

Everything is built in a hidden folder on the same file system and gets its place by one rename; what must go leaves the
same way. A version is renamed in before its config is replaced, and a model refuses to load under a config that does
not fit it, so a writer that is killed in between leaves nothing that serves wrong answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.models.specs import (
    CPU_DECODER_FILE,
    CPU_ENCODER_FILE,
    DECODER_FILE,
    EIGHT_BIT_ENCODER_FILE,
    ENCODER_FILE,
    EXTERNAL_DATA_SUFFIX,
    GRAPHS_FILE,
    NETWORK_FILE,
    OLD_EIGHT_BIT_ENCODER_FILE,
    ModelSpec,
    graphs_from_json,
)

CONFIG_FILE = "config.pbtxt"
#: What tells an engine that it may run a version: more of them than were asked for make it another one.
_ENGINES_FILES = (
    ENCODER_FILE,
    DECODER_FILE,
    CPU_ENCODER_FILE,
    EIGHT_BIT_ENCODER_FILE,
    OLD_EIGHT_BIT_ENCODER_FILE,
    CPU_DECODER_FILE,
    NETWORK_FILE,
)
#: The version before stays beside the newest one, for a server that still has to come back with it.
_VERSIONS_KEPT = 2

#: Name in a version folder -> the file that is linked there, or the text that is written.
Files = Mapping[str, Path | str]


@dataclass(frozen=True, slots=True)
class ModelState:
    """What a server would load now.

    Attributes:
        version: number of the newest version.
        config: text of the config.
    """

    version: int
    config: str


def model_state(folder: Path) -> ModelState | None:
    """The state of a model's folder; None where there is nothing to load."""
    text, version = read_config(folder), newest_version(folder)
    return ModelState(version, text) if text is not None and version else None


def read_config(folder: Path) -> str | None:
    """The text of a model's config; None where there is none to read."""
    try:
        return (folder / CONFIG_FILE).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def versions(folder: Path) -> list[int]:
    """The versions in a model's folder, oldest first; Triton too reads only numbers that do not begin with 0."""
    try:
        names = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii() and name[0] != "0")


def newest_version(folder: Path) -> int:
    """The newest version's number; 0 where there is none."""
    return max(versions(folder), default=0)


def served_spec(row: ModelSpec, version_folder: Path) -> ModelSpec:
    """A catalogue row with the graphs of a version; its own where the version does not describe any (older ones).

    SetupError where the description is damaged.
    """
    try:
        text = (version_folder / GRAPHS_FILE).read_bytes()
    except FileNotFoundError:
        return row
    except OSError as error:
        raise SetupError(
            f"{version_folder / GRAPHS_FILE} cannot be read ({error.strerror}): see to its rights"
        ) from None
    try:
        return dataclasses.replace(row, graphs=graphs_from_json(text))
    except ValueError:
        raise SetupError(f"{version_folder / GRAPHS_FILE} is damaged: run `triton-sam setup {row.id}` again") from None


def holds(version_folder: Path, files: Files) -> bool:
    """Whether a version has exactly these graphs and data, and describes them so where it describes them at all."""
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
    """One writer's hidden folder beside a repository. Made by :func:`writing`."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository = repository
        self._folder = folder
        self._number = 0

    def new_path(self) -> Path:
        """A path on the repository's file system that nobody uses, gone after the writing."""
        self._number += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / str(self._number)

    def write_model(self, name: str, version: int, files: Files, config: str) -> None:
        """Lets a model's folder hold ``files`` as ``version``, under ``config``; older versions but one go."""
        target = self.repository / name
        if not target.exists():
            building = self.new_path()
            _fill(building / str(version), files)
            (building / CONFIG_FILE).write_text(config)
            building.rename(target)
            return
        place = target / str(version)
        if not place.exists():
            building = self.new_path()
            _fill(building, files)
            building.rename(place)
        for text_name, content in files.items():
            if isinstance(content, str):
                self._replace_text(place / text_name, content)
        self._replace_text(target / CONFIG_FILE, config)
        for old in versions(target)[:-_VERSIONS_KEPT]:
            (target / str(old)).rename(self.new_path())

    def _replace_text(self, target: Path, text: str) -> None:
        """By one rename, and only where it differs: Triton loads anew what has a newer date."""
        if target.is_file() and target.read_text() == text:
            return
        written = self.new_path()
        written.write_text(text)
        written.replace(target)

    def copy_model(self, old: str, new: str, config: str) -> None:
        """Puts the versions of ``old`` under the name ``new`` too, in place of what had that name."""
        building = self.new_path()
        shutil.copytree(self.repository / old, building, copy_function=link_or_copy)
        (building / CONFIG_FILE).unlink()  # a link: writing into it would write into the old model
        (building / CONFIG_FILE).write_text(config)
        self.remove_model(new)
        building.rename(self.repository / new)

    def remove_model(self, name: str) -> None:
        """Takes a model out of the repository; nothing happens where there is none."""
        with contextlib.suppress(FileNotFoundError):
            (self.repository / name).rename(self.new_path())


@contextlib.contextmanager
def writing(repository: Path) -> Iterator[RepositoryWriter]:
    """The right to write to a repository, one process at a time; SetupError where it cannot be written."""
    try:
        repository.mkdir(parents=True, exist_ok=True)
        with _locked(repository) as alone:
            place, prefix = _place_of(repository), f".{repository.name}-writing-"
            if alone:
                for left in place.iterdir():
                    if left.name.startswith(prefix):  # of a writer that was killed
                        shutil.rmtree(left, ignore_errors=True)
            folder = place / f"{prefix}{os.getpid()}"
            try:
                yield RepositoryWriter(repository, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        reason = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        raise SetupError(f"cannot write models to {repository} ({reason}): choose a folder of yours") from None


def _place_of(repository: Path) -> Path:
    """Beside the repository, where no server looks; inside it where it is a mount of its own."""
    repository = repository.resolve()
    same_device = repository.parent.stat().st_dev == repository.stat().st_dev
    return repository.parent if same_device else repository


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Waits for other writers; False where the system or the file system has no such lock."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        alone = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            alone = False
        yield alone
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
    """A hard link where the file system allows it, else a copy: a repository must stand on its own."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
