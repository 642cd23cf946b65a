"""Messages between a Triton process and a worker: a header, and bytes that may go through shared memory.

Headers are plain values (dictionaries, lists, strings, numbers) in Python's ``marshal`` format, which is quicker
than JSON. It is only for processes of one installation, and each end checks that the other one is of this user.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from triton_sam.backend.workers.result_blocks import LentResults
from triton_sam.backend.workers.shared_slots import SharedSlots, new_memory

_FRAME = struct.Struct("<II")
_READ_BYTES = 256 * 1024
#: Smaller bodies go through the socket: that is one copy more, and no slot.
_SMALL = 8 * 1024
_GREETING = b"slots"
_CREDENTIALS = struct.Struct("3i")
_TIMEVAL = struct.Struct("ll")
#: A process that takes nothing for so long hangs, and must not hold up those who send to it.
_SEND_SECONDS = 10


@dataclass(slots=True)
class Message:
    """A received message.

    Attributes:
        header: plain values.
        body: bytes that follow; empty if there are none. In shared memory until :meth:`release`.
    """

    header: dict[str, Any]
    body: bytes | memoryview = b""
    _free: Callable[[], None] | None = None

    def release(self) -> None:
        """Gives the body's memory back. It must not be read after that."""
        if self._free is not None:
            free, self._free = self._free, None
            self.body = b""
            free()


class Channel:
    """One end of a connection. :meth:`send` may be called by any thread, :meth:`receive` by one."""

    def __init__(
        self, connection: socket.socket, outgoing: SharedSlots, incoming: SharedSlots, *, borrows: bool = False
    ) -> None:
        """
        Args:
            borrows: whether the other end is a worker, which passes its memory for results before its first message.
        """
        self._socket = connection
        self._borrows = borrows
        self._lent: LentResults | None = None
        self._outgoing = outgoing
        self._incoming = incoming
        self._send_lock = threading.Lock()
        self._held: list[bytes | memoryview] = []
        self._received = memoryview(bytearray(_READ_BYTES))
        #: The beginning of a message that has not arrived completely.
        self._begun = bytearray()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(_SEND_SECONDS, 0))
        self.peer = _credentials(connection)[0]
        """The pid of the other end."""
        self.reads = 0
        """How often something has arrived."""
        self.listening = False
        """Whether :meth:`receive` waits for the other end; not while its caller works on a message."""

    def send(self, header: dict[str, Any], parts: Sequence[bytes | memoryview] = (), *, hold: bool = False) -> None:
        """Sends a message whose body is ``parts``, one after the other; OSError if the other end is gone.

        Args:
            hold: keep it until the next :meth:`flush` or :meth:`send`, so that several messages are sent at once.
        """
        total = sum(len(part) for part in parts)
        with self._send_lock:
            if total > _SMALL:
                slot = self._outgoing.write(parts)
                if slot is not None:
                    header["slot"] = [slot, total]
                    parts, total = (), 0
            self._held += (*_frame(header, total), *parts)
            if not hold:
                self._send_held()

    def send_if_free(self, header: dict[str, Any]) -> None:
        """Sends a small message unless that would block: somebody else is sending, or the other end does not read."""
        if not self._send_lock.acquire(blocking=False):
            return
        try:
            if not self._held:
                # The kernel takes less than a page of a Unix stream whole or not at all.
                self._socket.send(b"".join(_frame(header, 0)), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        finally:
            self._send_lock.release()

    def flush(self) -> None:
        """Sends what was held; OSError if the other end is gone."""
        with self._send_lock:
            self._send_held()

    def _send_held(self) -> None:
        if self._held:
            held, self._held = self._held, []
            try:
                self._socket.sendall(b"".join(held))
            except OSError:
                self.end()  # a part may have been sent
                raise

    def messages(self) -> Iterator[Message]:
        """Messages as they arrive, until the other end closes."""
        while (arrived := self.receive()) is not None:
            yield from arrived

    def receive(self) -> list[Message] | None:
        """Waits for bytes, and returns the messages that are complete now; None if the other end has closed."""
        self.listening = True
        try:
            if self._borrows and self._lent is None:
                self._lent = LentResults(*_received(self._socket, 1))
            count = self._socket.recv_into(self._received)
        except OSError:
            return None
        self.listening = False
        self.reads += 1
        if not count:
            return None
        buffer, start = self._begun, 0
        buffer += self._received[:count]
        arrived = []
        while len(buffer) - start >= _FRAME.size:
            head, body = _FRAME.unpack_from(buffer, start)
            end = start + _FRAME.size + head + body
            if len(buffer) < end:
                break
            at = start + _FRAME.size
            arrived.append(self._message(bytes(buffer[at : at + head]), bytes(buffer[at + head : end])))
            start = end
        del buffer[:start]
        return arrived

    def fileno(self) -> int:
        """Of the socket, to wait for several channels; -1 after :meth:`close`."""
        return self._socket.fileno()

    def end(self) -> None:
        """Ends the connection: :meth:`messages` ends on both sides, and threads that block in :meth:`send` go on."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection and frees it."""
        self.end()
        self._socket.close()

    def _message(self, head: bytes, body: bytes) -> Message:
        header = marshal.loads(head)
        place = header.pop("slot", None)
        if place is not None:
            slot, length = place
            return Message(header, self._incoming.view(slot, length), lambda: self._incoming.free(slot))
        lent, place = self._lent, header.pop("lent", None)
        if lent is not None and place is not None:
            loan, offset, length = place
            return Message(header, lent.view(offset, length), lambda: lent.give_back(loan))
        return Message(header, body)


def _frame(header: dict[str, Any], body: int) -> tuple[bytes, bytes]:
    """What precedes a body of so many bytes."""
    head = marshal.dumps(header)
    return _FRAME.pack(len(head), body), head


def address_of(server: int, model: str, version: str, device: int) -> str:
    """The address of a worker's socket. It is in Linux's abstract namespace, so there is no file to leave behind.

    Args:
        server: pid of the tritonserver process.
        device: index of the device.
    """
    return f"\0triton-sam/{server}/{model}/{version}/{device}"


def connect(address: str) -> Channel:
    """Connects to a worker; OSError if none listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
        _check_peer(connection)
        outgoing, incoming = new_memory(), new_memory()
        try:
            socket.send_fds(connection, [_GREETING], [outgoing, incoming])
        except OSError:
            os.close(outgoing)
            os.close(incoming)
            raise
        return Channel(connection, SharedSlots(outgoing), SharedSlots(incoming), borrows=True)
    except BaseException:
        connection.close()
        raise


def accept(connection: socket.socket, results: int) -> Channel:
    """The worker's end of a connection; OSError if it does not come from a process of this user.

    Args:
        results: the descriptor of the worker's :class:`ResultBlocks`.
    """
    _check_peer(connection)
    incoming, outgoing = _received(connection, 2)
    channel = Channel(connection, SharedSlots(outgoing), SharedSlots(incoming))
    socket.send_fds(connection, [_GREETING], [results])
    return channel


def _received(connection: socket.socket, count: int) -> list[int]:
    """So many file descriptors of the other end; OSError if it sends something else."""
    greeting, descriptors, _, _ = socket.recv_fds(connection, len(_GREETING), count)
    if greeting != _GREETING or len(descriptors) != count:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ConnectionError("the other end is no triton-sam process")
    return descriptors


def _check_peer(connection: socket.socket) -> None:
    """Abstract sockets have no file permissions, so each end checks who the other one is."""
    user = _credentials(connection)[1]
    if user not in (os.getuid(), 0):
        raise PermissionError(f"the other end belongs to user {user}")


def _credentials(connection: socket.socket) -> tuple[int, int, int]:
    """(pid, user, group) of the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(raw)
    return pid, user, group
