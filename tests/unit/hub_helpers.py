"""A false Hub with whole repositories: the local file server answers as huggingface.co does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from tests.unit.helpers import COMMIT, FileServer, Served
from triton_sam.models.vlm_specs import HubSnapshot

SOURCE = HubSnapshot("owner/talker", COMMIT, ("*.json", "*.safetensors"))
#: A repository as people have them: the weights twice, once as a pickle.
FILES: dict[str, bytes] = {
    "config.json": b'{"model_type": "talker"}',
    "tokenizer.json": b'{"words": []}',
    "model.safetensors": b"numbers" * 50_000,
    "pytorch_model.bin": b"a pickle",
    "README.md": b"read me",
}
#: The same in pieces.
PARTS: dict[str, bytes] = {
    "config.json": FILES["config.json"],
    "model-1.safetensors": b"first" * 10_000,
    "model-2.safetensors": b"second" * 10_000,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    ).encode(),
}


def is_large(name: str) -> bool:
    """Whether the Hub keeps a file outside of git."""
    return name.endswith((".safetensors", ".bin"))


def checksum(name: str, content: bytes) -> str:
    """The name of a file's blob in the cache."""
    return hashlib.sha256(content).hexdigest() if is_large(name) else git_sum(content)


def git_sum(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def add_repository(
    server: FileServer,
    files: Mapping[str, bytes] = FILES,
    source: HubSnapshot = SOURCE,
    *,
    damaged: Mapping[str, bytes] | None = None,
    refusal: Served | None = None,
) -> None:
    """Makes the server play the Hub for a repository.

    Args:
        damaged: what is sent in place of some files, under the checksums of the right ones.
        refusal: what is answered in place of every file.
    """
    api = f"/api/models/{source.repo}"
    siblings = [{"rfilename": name} for name in files]
    info = {"id": source.repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False, "downloads": 0}
    tree = []
    for name, content in files.items():
        entry = {"type": "file", "path": name, "size": len(content), "oid": git_sum(content)}
        if is_large(name):
            entry["lfs"] = {"oid": checksum(name, content), "size": len(content), "pointerSize": 134}  # type: ignore[assignment]
        tree.append(entry)
        etag = checksum(name, content)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}
        if is_large(name):
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
        file = refusal or Served((damaged or {}).get(name, content), headers=headers)
        for revision in {source.revision, COMMIT}:
            server.add(f"/{source.repo}/resolve/{revision}/{name}", file)
    for revision in {source.revision, COMMIT}:
        server.add(f"{api}/revision/{revision}", _json(info))
        for query in ("?recursive=True&expand=False", "?recursive=true&expand=false", "?recursive=True", ""):
            server.add(f"{api}/tree/{revision}{query}", _json(tree))


def downloaded(server: FileServer) -> set[str]:
    """Names of the files that were sent."""
    return {path.rpartition("/")[2] for path, _ in server.requests if "/resolve/" in path}


def cache_folder(home: Path, source: HubSnapshot = SOURCE) -> Path:
    return home / "hub" / f"models--{source.repo.replace('/', '--')}"


def fill_cache(
    home: Path, files: Mapping[str, bytes] = FILES, source: HubSnapshot = SOURCE, commit: str = COMMIT
) -> Path:
    """A repository as the library itself keeps it; gives the commit's folder."""
    storage = cache_folder(home, source)
    folder = storage / "snapshots" / commit
    for place in (storage / "blobs", storage / "refs", folder):
        place.mkdir(parents=True, exist_ok=True)
    if source.revision != commit:
        (storage / "refs" / source.revision).write_text(commit)
    for name, content in files.items():
        blob = storage / "blobs" / checksum(name, content)
        blob.write_bytes(content)
        (folder / name).symlink_to(blob)
    return folder


def _json(document: object) -> Served:
    return Served(json.dumps(document).encode(), headers={"Content-Type": "application/json"})
