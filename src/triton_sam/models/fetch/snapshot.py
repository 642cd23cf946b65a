"""Checkpoints on the Hugging Face Hub: files of one commit in the user's own Hub cache, verified before use.

The Hub's library downloads them with the user's settings (HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE) to the cache
that other tools share. It does not verify files; here each is compared with the checksum that is its name in the cache:
sha256 for large files, git's sha1 for small ones.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from triton_sam.errors import WeightsError
from triton_sam.installation import install
from triton_sam.models.fetch.http import CHUNK, Progress, check_reachable, is_disk_full
from triton_sam.models.fetch.hub import NO_HUB, answer_seconds, hub_errors
from triton_sam.models.vlm_specs import HubSnapshot

log = logging.getLogger(__name__)

#: Called with the name of a step; returns the progress callback of that step.
Steps = Callable[[str], Progress]

CONFIG_FILE = "config.json"
WEIGHTS = "*.safetensors"
#: Never downloaded, whatever a source's patterns are: these files may contain code.
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.npz", "*.npy", "*.h5", "*.msgpack")
_DISK_RESERVE = 200 * 1024 * 1024
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def find_snapshot(source: HubSnapshot) -> Path | None:
    """The folder with all files of a source in the Hub's cache, unverified, or None. Uses no network."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return None
    try:
        folder = Path(
            snapshot_download(
                source.repo,
                revision=source.revision,
                allow_patterns=list(source.files),
                ignore_patterns=list(_PICKLES),
                local_files_only=True,
            )
        )
    except Exception:  # missing or incomplete: the library's error classes differ between versions
        return None
    return folder if not _missing(folder, source) else None


def fetch_snapshot(source: HubSnapshot, size: int, steps: Steps) -> Path:
    """The folder with all files of a source, all verified; only missing files are downloaded.

    A wrong file is deleted; if it came from an earlier download, it is downloaded once more.

    Args:
        size: approximate bytes of the files.
    """
    try:
        from huggingface_hub import constants
    except ImportError:
        raise WeightsError(f"the library for it is not installed: {install('huggingface_hub')}") from None
    if constants.HF_HUB_OFFLINE:
        raise WeightsError("HF_HUB_OFFLINE is set and it is not complete in the Hub's cache: unset it to download")
    commit = _look_up(source)
    storage = Path(constants.HF_HUB_CACHE).expanduser() / f"models--{source.repo.replace('/', '--')}"
    place = storage / "snapshots" / commit
    _check_disk(storage, size - sum(_size(path) for path in snapshot_files(place, source)))
    while True:
        left = (*storage.glob("blobs/*"), *snapshot_files(place, source))
        before = {path.resolve().name for path in left}
        folder = _download(source, steps("download"))
        wrong = drop_wrong_files(folder, source, steps("verify"))
        if not wrong:
            break
        if not before & set(wrong):
            raise WeightsError("; ".join(wrong.values()))
        log.warning("%s: %s; it is downloaded again", source.repo, "; ".join(wrong.values()))
    missing = _missing(folder, source)
    if missing:
        raise WeightsError(f"the repository {source.repo} has no {missing[0]} at {source.revision}")
    return folder


def snapshot_files(folder: Path, source: HubSnapshot) -> list[Path]:
    """The files of a source in its folder, sorted, without files that other tools put there."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        wanted = any(fnmatch(name, pattern) for pattern in source.files)
        if wanted and not any(fnmatch(name, pattern) for pattern in _PICKLES) and not path.is_dir():
            found.append(path)
    return found


def missing_files(folder: Path) -> list[str]:
    """Missing files of a checkpoint's folder: its config, its weights, or parts that the weights' index names."""
    missing = [] if (folder / CONFIG_FILE).is_file() else [CONFIG_FILE]
    if not any(path.is_file() for path in folder.glob(WEIGHTS)):
        missing.append(WEIGHTS)
    for index in folder.glob(f"{WEIGHTS}.index.json"):
        try:
            parts = set(json.loads(index.read_bytes())["weight_map"].values())
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            parts = {index.name}
        missing += sorted(str(part) for part in parts if not (folder / str(part)).is_file() or part == index.name)
    return missing


def drop_wrong_files(folder: Path, source: HubSnapshot, progress: Progress) -> dict[str, str]:
    """Compares all files of a source with their checksums and deletes those that are wrong.

    WeightsError if one cannot be read or deleted.

    Returns:
        Name of the blob -> its fault.
    """
    files = snapshot_files(folder, source)
    total = sum(_size(path) for path in files)
    done = 0
    wrong = {}
    for path in files:
        blob = path.resolve()

        def report(read: int, before: int = done) -> None:
            progress(before + read, total)

        reason = _fault(path.name, blob, report)
        done += _size(path)
        if reason is not None:
            wrong[blob.name] = reason
            try:
                blob.unlink(missing_ok=True)
                path.unlink(missing_ok=True)
            except OSError as error:
                raise WeightsError(f"{reason.partition(', so')[0]}, and {_not_writable(blob, error)}") from None
    return wrong


def remove_snapshot(folder: Path) -> int:
    """Deletes one commit's folder and the blobs that no other commit shares; returns their bytes."""
    storage = folder.parent.parent
    own = {path.resolve() for path in folder.rglob("*") if path.is_file()}
    others = {
        path.resolve()
        for other in folder.parent.glob("*")
        if other != folder
        for path in other.rglob("*")
        if path.is_file()
    }
    freed = 0
    for blob in own - others:
        freed += _size(blob)
        blob.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    if not any(folder.parent.glob("*")):
        shutil.rmtree(storage, ignore_errors=True)
    return freed


def _look_up(source: HubSnapshot) -> str:
    """The commit of the revision, with a short timeout; the library itself would retry for minutes."""
    from huggingface_hub import HfApi, constants

    check_reachable(constants.ENDPOINT)
    with hub_errors(source.repo, source.revision):
        try:
            answer = HfApi().model_info(source.repo, revision=source.revision, timeout=answer_seconds())
        except (ValueError, KeyError, TypeError) as error:
            if type(error).__module__.startswith("huggingface_hub"):
                raise
            raise WeightsError(NO_HUB) from None
    if not answer.sha:
        raise WeightsError(NO_HUB)
    return str(answer.sha)


def _download(source: HubSnapshot, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download

    with hub_errors(source.repo, source.revision):
        try:
            return Path(
                snapshot_download(
                    source.repo,
                    revision=source.revision,
                    allow_patterns=list(source.files),
                    ignore_patterns=list(_PICKLES),
                    tqdm_class=_bars_of(progress),
                )
            )
        except OSError as error:
            if is_disk_full(error):
                raise WeightsError("the disk is full: make room or set HF_HOME to another disk") from None
            if error.errno and error.filename:
                raise WeightsError(_not_writable(Path(str(error.filename)), error)) from None
            raise


def _bars_of(progress: Progress) -> Any:
    """A progress bar class for the library that draws nothing and passes the bytes of all files to ``progress``."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            name = str(named.get("name") or "")
            self._tells = named.get("unit") == "B" and not name.endswith(".transfer")
            self._bytes = int(named.get("initial") or 0)
            super().__init__(*arguments, **{**named, "disable": True})

        def update(self, n: float | None = 1) -> None:
            if self._tells:
                self._bytes += int(n or 0)
                progress(self._bytes, int(self.total) if self.total else None)

    return Bar


def _fault(name: str, blob: Path, report: Callable[[int], None]) -> str | None:
    """The fault of a file's content; None if its checksum is right."""
    expected = blob.name
    if not _BLOB.fullmatch(expected):
        return f"{name} has no checksum to compare with, so it was not kept"
    digest = hashlib.sha256() if len(expected) == 64 else hashlib.sha1(usedforsecurity=False)
    if len(expected) == 40:
        digest.update(f"blob {_size(blob)}\0".encode())  # as git does
    done = 0
    try:
        with blob.open("rb") as stream:
            while chunk := stream.read(4 * CHUNK):
                digest.update(chunk)
                done += len(chunk)
                report(done)
    except OSError as error:
        reason = f"{name} in the Hub's cache cannot be read ({error.strerror})"
        raise WeightsError(f"{reason}: check its permissions") from None
    if digest.hexdigest() == expected:
        return None
    return (
        f"{name} has the wrong checksum ({digest.name} {digest.hexdigest()[:12]}..., expected {expected[:12]}...), "
        "so it was not kept"
    )


def _missing(folder: Path, source: HubSnapshot) -> list[str]:
    """Missing files of a source's folder: those of its patterns, and of a checkpoint if the patterns name weights."""
    missing = [name for name in source.files if not re.search(r"[*?[]", name) and not (folder / name).is_file()]
    if any(pattern.endswith(".safetensors") for pattern in source.files):
        missing += missing_files(folder)
    return missing + [path.name for path in snapshot_files(folder, source) if not path.is_file()]


def _check_disk(storage: Path, needed: int) -> None:
    if needed <= 0:
        return
    needed += _DISK_RESERVE
    place = storage
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise WeightsError(
            f"it needs {needed / 1e6:.0f} MB on disk and the Hub's cache in {storage.parent} has {free / 1e6:.0f} MB "
            "free: make room or set HF_HOME to another disk"
        )


def _not_writable(path: Path, error: OSError) -> str:
    return f"the Hub's cache cannot be written ({path}: {error.strerror}): set HF_HOME to a writable folder"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
