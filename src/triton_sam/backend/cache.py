"""The LRU cache of embeddings, keyed by image content and bounded in bytes."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from triton_sam.engines.base import Embedding
from triton_sam.errors import ImageExpired


def content_key(model_id: str, version: str, encoder: str, data: bytes | memoryview) -> str:
    """The ``image_key`` of an image file for one version of a model. Equal content gives the same key on every server.

    Args:
        encoder: its dtype, because another one gives other embeddings.
    """
    digest = hashlib.sha256(f"{model_id}\0{version}\0{encoder}\0".encode())
    digest.update(data)
    return digest.hexdigest()[:40]


#: Of the bytes, for images that only background requests have used.
_BACKGROUND_SHARE = 0.25


class EmbeddingCache:
    """Thread-safe; ``put`` evicts until the bytes fit.

    Images that only background requests have used replace each other beyond a share: a job of a million images would
    otherwise drive out those that people work on.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._background: OrderedDict[str, int] = OrderedDict()
        self.bytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Embedding] = OrderedDict()
        #: Hash of an embedding that was sent to a client -> image key, for tools that send embeddings back.
        self._aliases: dict[str, str] = {}

    def get(self, key: str, *, background: bool = False) -> Embedding | None:
        """The embedding, now the most recently used; None if it is not cached.

        Args:
            background: whether a background request asks.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                if key in self._background:
                    if background:
                        self._background.move_to_end(key)
                    else:
                        del self._background[key]
            return entry

    def require(self, key: str, *, background: bool = False) -> Embedding:
        """As :meth:`get`, but raises ImageExpired if it is not cached."""
        entry = self.get(key, background=background)
        if entry is None:
            raise ImageExpired(f"image_key {key[:40]!r} is unknown here or has expired: send the image again")
        return entry

    def put(self, key: str, embedding: Embedding, *, background: bool = False) -> None:
        """Stores an embedding. One larger than the whole cache is not stored.

        Args:
            background: whether only background requests wait for it.
        """
        with self._lock:
            if key in self._entries:
                self._evict(key, forget=False)
            if embedding.nbytes > self.max_bytes:
                return
            most = int(self.max_bytes * _BACKGROUND_SHARE)
            while background and self._background and sum(self._background.values()) + embedding.nbytes > most:
                self._evict(next(iter(self._background)))
            while self._entries and self.bytes + embedding.nbytes > self.max_bytes:
                self._evict(next(iter(self._entries)))
            self._entries[key] = embedding
            self.bytes += embedding.nbytes
            if background:
                self._background[key] = embedding.nbytes

    def _evict(self, key: str, *, forget: bool = True) -> None:
        """Removes an embedding. Under the lock.

        Args:
            forget: its aliases too.
        """
        self.bytes -= self._entries.pop(key).nbytes
        self._background.pop(key, None)
        if forget:
            self._aliases = {alias: to for alias, to in self._aliases.items() if to != key}

    def add_alias(self, alias: str, key: str) -> None:
        """Makes an image findable by its embedding's hash while it is cached; see :meth:`find_alias`."""
        with self._lock:
            if key in self._entries:
                self._aliases[alias] = key

    def find_alias(self, alias: str) -> tuple[str, Embedding] | None:
        """(image key, embedding) for an embedding's hash; None if it is unknown."""
        key = self._aliases.get(alias)
        entry = self.get(key) if key is not None else None
        return None if key is None or entry is None else (key, entry)

    def __len__(self) -> int:
        return len(self._entries)
