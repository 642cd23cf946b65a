"""Threads that read images, send them and wait for their masks, on any number of servers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from triton_sam.batch.executors.dispatching import Dispatcher, Entry, Flight
from triton_sam.batch.executors.pacing import MOST_IN_FLIGHT
from triton_sam.batch.executors.segmenting import (
    ModelServer,
    SizeOf,
    check_options,
    image_file,
    needs_server,
    segment,
    without_masks,
)
from triton_sam.batch.executors.servers import Servers
from triton_sam.batch.records import Item, Outcome, SegmentOptions, Work
from triton_sam.client.transport import Transport
from triton_sam.core.image_choice import ImageChoice
from triton_sam.errors import InternalError, InvalidInput

#: (item, choice) -> what is sent to the server.
Read = Callable[[Item, ImageChoice], bytes]
#: Replaces the network, for tests: URL -> transport.
MakeTransport = Callable[[str | None], Transport]

_READERS = 4
#: Seconds that are given to threads at the end; those that wait for a server end with its answer.
_JOIN_SECONDS = 2.0


class Engine:
    """Segments images of one job in this process. Thread-safe: several tasks may share it.

    Each server has threads of its own, as many as it has requests in flight, each with its own connection. Reading has
    its own threads, so that the next images are at hand when a server is free.
    """

    # Many parameters: settings of a job, and what tests replace.
    def __init__(
        self,
        urls: Sequence[str | None],
        options: SegmentOptions,
        *,
        token: str | None,
        timeout: float,
        patience: float,
        read: Read,
        size_of: SizeOf,
        most: int = MOST_IN_FLIGHT,
        transport: MakeTransport | None = None,
    ) -> None:
        if not urls:
            raise InvalidInput("give the address of at least one server")
        check_options(options)
        self._options = options
        self._read = read
        self._size_of = size_of
        self._models = [
            ModelServer(url, options.model, token=token, timeout=timeout, transport=transport and transport(url))
            for url in urls
        ]
        servers = Servers([model.address for model in self._models], patience=patience, most=most)
        self._board = Dispatcher(servers, _READERS)
        self._lock = threading.Lock()
        self._may_read = threading.Condition(self._lock)
        self._may_send = [threading.Condition(self._lock) for _ in urls]
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._dropped = False  # what is in flight
        self._readers: list[threading.Thread] = []
        self._senders: list[list[threading.Thread]] = [[] for _ in urls]

    # -- for one job or several tasks ----------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more images it takes now."""
        with self._lock:
            stopped = self._closed or self._board.stopped is not None
            return 0 if stopped else self._board.room

    @property
    def is_closed(self) -> bool:
        return self._closed

    def submit(self, work: Work, into: deque[Outcome]) -> None:
        """Takes an image; its outcome is appended to ``into``, which :meth:`collect` empties."""
        with self._lock:
            if self._closed:
                raise InternalError("the executor is closed")
            self._board.submit(Entry(work, into))
            self._wake()

    def collect(self, into: deque[Outcome], timeout: float) -> list[Outcome]:
        """Empties ``into``; waits for the first outcome. Raises JobStopped once there are none left."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while not into:
                if self._board.stopped is not None and not self._closed:
                    raise self._board.stopped
                left = deadline - time.monotonic()
                if left <= 0 or self._dropped or (self._closed and not self._board.in_flight):
                    return []
                self._changed.wait(left)
            found = list(into)
            into.clear()
            return found

    def describe(self) -> str:
        """Where the images are, in a few words."""
        with self._lock:
            states = self._board.servers.states
            text = f"{self._board.in_flight} in flight"
            if len(states) > 1:
                text += f" on {len(self._board.servers.up)} servers"
            away = [state.address for state in states if not state.is_up]
            return f"{text}, waiting for {', '.join(away)}" if away else text

    def close(self, *, at_once: bool) -> None:
        """Ends it. What was not sent yet is dropped; what was sent is waited for, or with ``at_once`` dropped too."""
        with self._lock:
            self._closed = True
            self._dropped = self._dropped or at_once
            for condition in (self._may_read, self._changed, *self._may_send):
                condition.notify_all()
            while not self._dropped and self._board.in_flight:
                self._changed.wait()
            threads = [*self._readers, *(thread for group in self._senders for thread in group)]
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        for model in self._models:
            model.close()

    # -- under the lock ------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Lets threads look for work, and starts those that are missing."""
        board = self._board
        if self._closed:
            self._changed.notify_all()
            return
        if len(self._readers) < min(_READERS, board.held):
            self._start(self._readers, self._read_loop)
        self._may_read.notify()
        for server, state in enumerate(board.servers.states):
            group = self._senders[server]
            if len(group) < min(state.pace.limit, board.held) or not group:
                self._start(group, self._send_loop, server)
            self._may_send[server].notify()
        self._changed.notify_all()

    def _start(self, group: list[threading.Thread], loop: Callable[..., None], *arguments: Any) -> None:
        name = f"batch-{loop.__name__.strip('_').partition('_')[0]}-{len(group)}"
        thread = threading.Thread(target=loop, args=arguments, name=name, daemon=True)
        group.append(thread)
        thread.start()

    # -- threads -------------------------------------------------------------------------------------------------

    def _read_loop(self) -> None:
        while True:
            with self._lock:
                while (entry := None if self._closed else self._board.next_read()) is None:
                    if self._closed:
                        return
                    self._may_read.wait()
                self._may_read.notify()  # there may be more
            self._read_one(entry)
            del entry  # an idle thread keeps no image alive

    def _read_one(self, entry: Entry) -> None:
        work = entry.work
        image = result = None
        failure: Exception | None = None
        try:
            data = self._read(work.item, self._options.choice)
            size = self._size_of(data)
            if needs_server(work, self._options):
                image, entry.size = image_file(data), size
            else:
                result = without_masks(work.item, size)
        except Exception as error:
            failure = error
        with self._lock:
            if failure is not None:
                self._board.read_failed(entry, failure)
            elif image is not None:
                self._board.read(entry, image)
            else:
                assert result is not None
                self._board.needs_no_server(entry, result)
            self._wake()

    def _send_loop(self, server: int) -> None:
        state = self._board.servers.states[server]
        while True:
            flight: Flight | None = None
            with self._lock:
                while True:
                    if self._closed:
                        return
                    now = time.monotonic()
                    if state.ask_in(now) == 0 and self._board.stopped is None:
                        state.asking()
                        break
                    flight = self._board.next_flight(server, now)
                    if flight is not None:
                        self._may_send[server].notify()
                        self._may_read.notify()
                        break
                    self._may_send[server].wait(self._board.wait_for(server, now))
            if flight is None:
                self._ask(server)
            else:
                self._send(server, flight)
            del flight

    def _ask(self, server: int) -> None:
        failure: Exception | None = None
        try:
            self._models[server].check()
        except Exception as error:
            failure = error
        with self._lock:
            if failure is None:
                self._board.back(server)
            else:
                self._board.still_away(server, failure, time.monotonic())
            self._wake()

    def _send(self, server: int, flight: Flight) -> None:
        entry = flight.entry
        failure: Exception | None = None
        result = None
        assert entry.image is not None
        try:
            result = segment(
                entry.work,
                entry.image,
                self._options,
                self._models[server],
                size=entry.size,
                on_timings=flight.note,
            )
        except Exception as error:
            failure = error
        with self._lock:
            now = time.monotonic()
            if failure is None:
                assert result is not None
                self._board.answered(flight, result, now)
            else:
                self._board.failed(flight, failure, now)
            self._wake()
