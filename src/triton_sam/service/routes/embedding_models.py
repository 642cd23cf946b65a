"""Which model made each of the last embeddings: a click on an embedding need not name it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from pathlib import Path

_MAX_REMEMBERED = 512


class EmbeddingModels:
    """The models of the last embeddings, in the memory of one process. Thread-safe."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, digest: str, name: str) -> None:
        with self._lock:
            self._names[digest] = name
            self._names.move_to_end(digest)
            while len(self._names) > _MAX_REMEMBERED:
                self._names.popitem(last=False)

    def model_of(self, digest: str) -> str | None:
        """The Triton name of the model; None if unknown."""
        return self._names.get(digest)


class SharedEmbeddingModels(EmbeddingModels):
    """The same for all processes of a service: one small file for each embedding, in a private folder.

    An embedding has megabytes, so a file more costs nothing. A client may ask another process for a mask as soon as it
    has the embedding; a file is there before that, a message to the other process might not be.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def remember(self, digest: str, name: str) -> None:
        with contextlib.suppress(OSError):  # a full disk: the client can still name the model
            part = self._folder / f"{digest}.{os.getpid()}.{threading.get_ident()}"
            part.write_text(name, "utf-8")
            part.replace(self._folder / digest)
            self._remove_oldest()

    def model_of(self, digest: str) -> str | None:
        try:
            return (self._folder / digest).read_text("utf-8")
        except OSError:
            return None

    def _remove_oldest(self) -> None:
        files = list(self._folder.iterdir())
        if len(files) > _MAX_REMEMBERED:
            files.sort(key=lambda file: file.stat().st_mtime_ns)
            for file in files[: len(files) - _MAX_REMEMBERED]:
                file.unlink(missing_ok=True)
