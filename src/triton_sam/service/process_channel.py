"""Messages between the parent and the processes of a service: JSON objects over a Unix socket, one in each packet."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triton_sam.settings import Settings

_MAX_PACKET = 1024 * 1024

Message = dict[str, Any]


class Channel:
    """One end of a pair. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """(the parent's end, which never blocks; the socket that the process gets)."""
        # Packets arrive whole or not at all, and the end of the other process ends the connection.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        return cls(ours), theirs

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Sends a message; false if the other process has ended or does not read."""
        try:
            self._connection.send(json.dumps(message).encode())
        except OSError:
            return False
        return True

    def receive(self) -> Message | None:
        """The next message; None if the other process has ended. BlockingIOError in the parent if there is none."""
        try:
            packet = self._connection.recv(_MAX_PACKET)
        except ConnectionError:
            return None
        return None if not packet else dict(json.loads(packet))

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, slots=True)
class ServiceDescription:
    """What a process needs to know to serve. The parent sends it, because a secret must not be on a command line.

    Attributes:
        settings: of :func:`settings_document`.
        repository: folder of the model repository.
        segmenters: Triton names of those that are served.
        vlms: Triton name -> id of the vision-language models.
        folder: what the processes share is here.
        namespace: of the sessions on the server.
        log_level: of the root logger.
    """

    settings: Message
    host: str
    port: int
    repository: str
    segmenters: list[str]
    vlms: dict[str, str]
    triton_url: str
    metrics_url: str | None
    processes: int = 1
    folder: str = ""
    namespace: str = ""
    log_level: int = 0

    @property
    def metrics_folder(self) -> Path:
        """Of the values of all processes' metrics."""
        return Path(self.folder) / "metrics"

    @property
    def embeddings_folder(self) -> Path:
        """Of the models of the last embeddings."""
        return Path(self.folder) / "embeddings"

    @property
    def limits_file(self) -> Path:
        return Path(self.folder) / "limits"

    def message(self, process: int, status: Mapping[str, object]) -> Message:
        """For the process of this number, with the supervisor's status."""
        return {"service": asdict(self), "process": process, "status": dict(status)}


def settings_document(settings: Settings) -> Message:
    """Settings as JSON, with the token."""
    document: Message = settings.model_dump(mode="json")
    document["token"] = None if settings.token is None else settings.token.get_secret_value()
    return document


class PendingCounts:
    """Numbers that were asked of several processes and have not come from all of them. Used on one thread."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], set[int]] = {}
        self._sums: dict[tuple[int, int], int] = {}

    def ask(self, key: tuple[int, int], processes: set[int]) -> None:
        """Remembers a question, by the asking process and its number, and who is to answer it."""
        self._waiting[key], self._sums[key] = processes, 0

    def answer(self, key: tuple[int, int], process: int, number: int) -> None:
        if process in self._waiting.get(key, ()):
            self._waiting[key].discard(process)
            self._sums[key] += number

    def forget(self, process: int) -> None:
        """A process has ended: nobody waits for its answers, nor it for others'."""
        for key in [key for key in self._waiting if key[0] == process]:
            del self._waiting[key], self._sums[key]
        for processes in self._waiting.values():
            processes.discard(process)

    def complete(self) -> dict[tuple[int, int], int]:
        """Question -> the sum of its answers, of those that are complete; they are removed."""
        done = [key for key, processes in self._waiting.items() if not processes]
        return {key: self._sums.pop(key) for key in done if self._waiting.pop(key) is not None}
