"""A worker's side of its connections: takes requests from Triton processes, sends results back."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from triton_sam.backend.core import LocalCore
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.workers.answering import Withdrawn
from triton_sam.backend.workers.channel import Channel, Message, accept
from triton_sam.backend.workers.channel_reader import ChannelReader
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.relayed_metrics import RelayedMetrics
from triton_sam.backend.workers.result_blocks import ResultBlocks
from triton_sam.backend.workers.wire import pack_error, pack_found, pack_result, unpack_job
from triton_sam.core.everything.driver import Progress
from triton_sam.engines.base import Decoded
from triton_sam.errors import InternalError, TritonSamError
from triton_sam.logs import about, set_up_model_log
from triton_sam.models.catalog import get_spec
from triton_sam.repository.model_folders import served_spec
from triton_sam.settings import Settings

log = logging.getLogger(__name__)
_POLL_SECONDS = 0.1
#: Of a worker that ends.
_GREETING_SECONDS = 2.0
_PLACES_KEPT = 65536
_SESSIONS_KEPT = 4096
#: Many threads share Python's lock here, and give it up by themselves often enough. Forced to hand it over ten times as
#: often, as where one person's click counts, they answered a sixth fewer clicks of 64 clients on an H200.
_SWITCH_SECONDS = 0.001


class Links:
    """All connections of a worker, and the core that they share.

    Attributes:
        farewells: number of Triton processes that ended in order since the last one joined.
        losses: number of those that ended without a goodbye since then.
        ended: set if the model cannot be loaded.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.core: LocalCore | None = None
        self.ended = threading.Event()
        self.farewells = self.losses = 0
        self._failure: str | None = None
        self._loaded = threading.Event()
        self._lock = threading.Lock()
        self._links: list[Link] = []
        self._ungreeted = 0
        self._told = False
        self._greeted = threading.Condition(self._lock)
        self.metrics = RelayedMetrics(self._report)
        self.results = ResultBlocks()
        self._reader = ChannelReader(lambda: self.core is not None and self.core.crowded)
        #: Image key -> index of its device, for keys whose home is this worker.
        self._places: OrderedDict[str, int] = OrderedDict()
        #: Sessions whose newest request is here and not on another device.
        self._own_sessions: OrderedDict[str, None] = OrderedDict()

    @property
    def count(self) -> int:
        """Number of connected Triton processes."""
        return len(self._links)

    def load(self, settings: Settings) -> None:
        """Loads the model; those who have connected are told the result."""
        options = self.options
        set_up_model_log(options.model, settings)
        try:
            folder = Path(options.folder)
            spec = served_spec(get_spec(options.model_id), folder)
            self.core = LocalCore(spec, folder, options.version, settings, self.metrics, self.results)
            if not self.core.on_cpu:
                sys.setswitchinterval(_SWITCH_SECONDS)
        except TritonSamError as error:
            self._failure = str(error)
        except Exception as error:
            log.exception("%s does not load", options.name)
            self._failure = f"{options.name} does not load: {error}"
        self._loaded.set()
        if self._failure is not None:
            self.ended.set()

    def add(self, connection: socket.socket) -> None:
        """Takes a connection, on a thread of its own until it has said hello."""
        with self._lock:
            self._ungreeted += 1
        threading.Thread(target=self._welcome, args=(connection,), name="welcome", daemon=True).start()

    def place(self, key: str, wanted: int | None, ready: list[int]) -> int | None:
        """The device of an image whose home is this worker.

        Args:
            wanted: the device to take if the image has none that is ready; None only looks.
        """
        with self._lock:
            known = self._places.get(key)
            if known in ready:
                self._places.move_to_end(key)
                return known
            if wanted is not None:
                self._places[key] = wanted
                if len(self._places) > _PLACES_KEPT:
                    self._places.popitem(last=False)
            return wanted

    def take_session(self, session: str) -> bool:
        """Notes that a session's newest request is here. Returns whether it was elsewhere, as far as is known."""
        with self._lock:
            if session in self._own_sessions:
                self._own_sessions.move_to_end(session)
                return False
            self._own_sessions[session] = None
            if len(self._own_sessions) > _SESSIONS_KEPT:
                self._own_sessions.popitem(last=False)
            return True

    def release_session(self, session: str) -> None:
        """Notes that a session's newest request is on another device."""
        with self._lock:
            self._own_sessions.pop(session, None)

    def tell_others(self, link: Link, header: dict[str, Any]) -> None:
        """Sends a small message to the other Triton processes, as far as they read just now: nobody waits for one."""
        with self._lock:
            others = [other.channel for other in self._links if other is not link]
        for channel in others:
            with contextlib.suppress(OSError):
                channel.send_if_free(header)

    def wait_greeted(self) -> None:
        """Waits, for a short time, until nobody who has connected waits to know whether the model was loaded.

        If it was not, somebody will connect: the Triton process that started this worker.
        """
        with self._greeted:
            self._greeted.wait_for(
                lambda: not self._ungreeted and (self._told or self._failure is None), _GREETING_SECONDS
            )

    def kill_peers(self, seconds: float) -> None:
        """Kills the Triton processes that are still connected after some time; call it when tritonserver has ended.

        One that is sending a response at that moment waits for ever, with Python's lock.
        """
        deadline = time.monotonic() + seconds
        while self._links and time.monotonic() < deadline:
            self.ended.wait(_POLL_SECONDS)
        for link in list(self._links):
            with contextlib.suppress(ProcessLookupError):
                os.kill(link.channel.peer, signal.SIGKILL)

    def close(self) -> None:
        """Finishes what was admitted and ends the connections."""
        if self.core is not None:
            self.core.close()
        for link in list(self._links):
            link.channel.close()

    def _welcome(self, connection: socket.socket) -> None:
        try:
            link = self._greet(connection)
        finally:
            with self._greeted:
                self._ungreeted -= 1
                self._greeted.notify_all()
        if link is None:
            return
        with self._lock:
            self._links.append(link)
            self.farewells = self.losses = 0
        self._reader.add(link.channel, link.take, partial(self._left, link))

    def _left(self, link: Link) -> None:
        link.drop_waiting()
        self.results.forget(link)
        with self._lock:
            self._links.remove(link)
            self.farewells += link.said_goodbye
            self.losses += not link.said_goodbye
        link.channel.close()

    def _greet(self, connection: socket.socket) -> Link | None:
        """Tells a Triton process whether the model was loaded; None if it was not, or if the process is gone."""
        try:
            channel = accept(connection, self.results.descriptor)
        except OSError as error:
            log.warning("a connection was refused: %s", error)
            connection.close()
            return None
        self._loaded.wait()
        try:
            if self.core is not None:
                info = self.core.info
                hello = {"is": "hello", "info": [info.model_id, info.version, info.encoder]}
                channel.send(hello | {"on_cpu": self.core.on_cpu, "starts_slowly": self.core.starts_slowly})
                return Link(self, self.core, channel)
            channel.send({"is": "failed", "text": self._failure})
            self._told = True
        except OSError as error:
            log.warning("a Triton process was gone before the model was loaded: %s", error)
        channel.close()
        return None

    def _report(self, counts: dict[str, int], levels: dict[str, float]) -> bool:
        """Sends metrics to one Triton process; False if there is none."""
        with self._lock:
            links = sorted(self._links, key=lambda link: link.instance)  # one process sums up all devices
        for link in links:
            try:
                link.channel.send({"is": "metrics", "counts": counts, "levels": levels})
                return True
            except OSError:
                continue
        return False


class Link:
    """One connection: a Triton process of the model."""

    def __init__(self, links: Links, core: LocalCore, channel: Channel) -> None:
        self._links = links
        self.core = core
        self.channel = channel
        self.said_goodbye = False
        self.instance = 0
        self._lock = threading.Lock()
        self._waiting: dict[int, _LinkReply] = {}
        self._kinds: dict[str, Callable[[Message], None]] = {
            "join": self._join,
            "work": self._work,
            "cancel": self._cancel,
            "ping": self._ping,
            "follow": self._follow,
            "alive": self._alive,
            "gone": self._gone,
            "place": self._place,
            "has": self._has,
            "moved": self._moved,
            "goodbye": self._goodbye,
        }

    def take(self, message: Message) -> None:
        """Acts on one message."""
        try:
            self._kinds[message.header["is"]](message)
        finally:
            message.release()

    def drop_waiting(self) -> None:
        """Drops what still waits: the other end is gone."""
        with self._lock:
            waiting = list(self._waiting.values())
        for reply in waiting:
            reply.gone = True

    def send(self, header: dict[str, Any], parts: Sequence[bytes | memoryview] = (), *, hold: bool = False) -> None:
        """Sends a message; one for a Triton process that has ended is dropped."""
        header["load"] = self.core.unanswered
        with contextlib.suppress(OSError):
            self.channel.send(header, parts, hold=hold)

    def send_result(self, header: dict[str, Any], parts: Sequence[memoryview]) -> None:
        """Sends a result with the next flush: lends it if it is in memory that the other end sees, else copies it."""
        loan = self._links.results.lend(parts[0], self) if len(parts) == 1 and len(parts[0]) else None
        if loan is not None:
            header["lent"] = [*loan, len(parts[0])]
            parts = ()
        self.send(header, parts, hold=True)

    def finish(self, number: int) -> None:
        """Forgets an answered request."""
        with self._lock:
            self._waiting.pop(number, None)

    def _join(self, message: Message) -> None:
        self.instance = message.header["instance"]

    def _work(self, message: Message) -> None:
        header = message.header
        reply = _LinkReply(self, header["number"])
        with self._lock:
            self._waiting[reply.number] = reply
        try:
            job, source = unpack_job(header["job"], message.body, reply)
            message.release()
            session = job.session
            if session is not None and job.latest_wins and header["shared"] and self._links.take_session(session):
                self.send({"is": "took", "session": session, "sequence": job.sequence})
            self.core.submit(job, source)
        except TritonSamError as error:
            reply.fail(error)
        except Exception as error:
            log.exception("a request could not be read", extra=about(header["job"].get("request", "")))
            reply.fail(InternalError(f"reading the request failed on the server ({type(error).__name__})"))

    def _cancel(self, message: Message) -> None:
        header = message.header
        self.core.cancel(
            header["session"],
            header["before"],
            header["only"],
            lambda count: self.send({"is": "done", "number": header["number"], "value": count}),
        )
        if self.core.takes_concepts:  # another process may still build masks; this one looks when it has its answer
            self._links.tell_others(self, Withdrawn.of_header(header).as_header() | {"is": "withdrawn"})

    def _ping(self, message: Message) -> None:
        number = message.header["number"]

        def answer(result: dict[str, Any] | TritonSamError) -> None:
            failed = isinstance(result, TritonSamError)
            self.send({"is": "done", "number": number, "value": {"failed": str(result)} if failed else result})

        self.core.ping(answer)

    def _follow(self, message: Message) -> None:
        header = message.header
        number = header["number"]
        self.core.follow(
            header["run"], header["since"], lambda news: self.send({"is": "done", "number": number, "value": news})
        )

    def _alive(self, message: Message) -> None:
        """Answered by this thread, which computes nothing that takes long; a ping goes through the decoder."""
        self.send({"is": "alive"})

    def _gone(self, message: Message) -> None:
        with self._lock:
            reply = self._waiting.get(message.header["number"])
        if reply is not None:
            reply.gone = True

    def _place(self, message: Message) -> None:
        header = message.header
        place = self._links.place(header["key"], header["wanted"], header["ready"])
        self.send({"is": "done", "number": header["number"], "value": place})

    def _has(self, message: Message) -> None:
        header = message.header
        self.send({"is": "done", "number": header["number"], "value": self.core.has(header["name"])})

    def _moved(self, message: Message) -> None:
        """A newer request of a session went to another device: the older ones here are superseded."""
        session = message.header["session"]
        self._links.release_session(session)
        self.core.cancel(session, message.header["sequence"], None, lambda count: None)

    def _goodbye(self, message: Message) -> None:
        self.said_goodbye = True


class _LinkReply:
    """Sends the result of one request to the Triton process that formats it."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self.number = number
        self.gone = False

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        embedding = self._link.core.embedding_of(job) if job.needs.embedding else None
        header, parts = pack_result(job, decoded, embedding)
        self._link.finish(self.number)
        self._link.send_result({"is": "result", "number": self.number, "result": header}, parts)

    def found(self, job: SegmentJob, progress: Progress) -> None:
        header = pack_found(job, progress)
        self._link.finish(self.number)
        self._link.send({"is": "found", "number": self.number, "result": header})

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._link.channel.flush()

    def fail(self, error: TritonSamError) -> None:
        self._link.finish(self.number)
        self._link.send({"is": "error", "number": self.number, **pack_error(error)})

    def is_cancelled(self) -> bool:
        return self.gone
