"""A server in memory for the asyncio side: holds requests until told, and drops them as the real one does."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client.wire import Call
from triton_sam.errors import Cancelled, ImageExpired, TritonSamError


class FakeAsyncTransport:
    """Answers calls at once, or when :meth:`open_gate` is called; keeps what it was asked."""

    def __init__(self, *, held: bool = False, native: bool = False) -> None:
        self.calls: list[Call] = []
        self.cancels: list[Mapping[str, Any]] = []
        self.cancel_headers: list[Mapping[str, str]] = []
        self.arrived = threading.Semaphore(0)
        self.told = threading.Semaphore(0)
        self.failure: TritonSamError | None = None
        self.failures_left = 10**9
        self.expired: set[str] = set()
        self.natively_cancelled = 0
        self.most_in_flight = 0
        self.closed = False
        self.deaf = False
        self._native = native
        self._held = held
        self._waiting: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        self._loop = asyncio.get_running_loop()
        if call.parameters.get("cancel"):
            return self._cancel(call)
        self.calls.append(call)
        if self._held:
            await self._hold(call)
        else:
            self.arrived.release()
        if self.failure is not None and self.failures_left > 0:
            self.failures_left -= 1
            raise self.failure
        key = call.inputs["image_key"][0].decode()
        if key in self.expired:
            raise ImageExpired(f"{key} has expired")
        x = point_of(call)
        answers = {
            "low_res_logits": np.full((1, 1, 256, 256), x, np.float32),
            "scores": np.full((1, 1), 0.5, np.float32),
        }
        return {name: answers[name] for name in call.outputs}

    async def _hold(self, call: Call) -> None:
        place = (str(call.parameters["session_id"]), int(call.parameters["sequence"]))
        waiting = self._waiting[place] = asyncio.get_running_loop().create_future()
        self.most_in_flight = max(self.most_in_flight, len(self._waiting))
        if call.parameters.get("latest_wins") and not self.deaf:
            self._drop(place[0], lambda number: number < place[1])
        self.arrived.release()
        try:
            await waiting
        except asyncio.CancelledError:
            self.natively_cancelled += 1
            raise
        finally:
            del self._waiting[place]

    def _cancel(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        self.cancels.append(call.parameters)
        self.cancel_headers.append(call.headers)
        self.told.release()
        if self.deaf:
            return {}
        before, only = call.parameters.get("before"), call.parameters.get("only")
        session = str(call.parameters["session_id"])
        self._drop(session, lambda number: (before is not None and number < int(before)) or number == only)
        return {"result_json": np.array([json.dumps({"cancelled": 0}).encode()], dtype=object)}

    def _drop(self, session: str, unwanted: Any) -> None:
        for (its_session, number), waiting in list(self._waiting.items()):
            if its_session == session and unwanted(number) and not waiting.done():
                waiting.set_exception(Cancelled("dropped by the server"))

    def open_gate(self) -> None:
        """Answers what is held, and what comes from now on."""
        assert self._loop is not None

        def release() -> None:
            self._held = False
            for waiting in list(self._waiting.values()):
                if not waiting.done():
                    waiting.set_result(None)

        self._loop.call_soon_threadsafe(release)

    async def can_cancel_natively(self) -> bool:
        return self._native

    async def close(self) -> None:
        self.closed = True


def point_of(call: Call) -> float:
    """The x of a click's first point."""
    document = json.loads(call.inputs["prompt_json"][0])
    return float(document["objects"][0]["points"][0][0])


class FakeTransport:
    """The blocking side: encodes at once, or when the gate is opened; knows which sessions it was asked by."""

    def __init__(self) -> None:
        self.encodes: list[Call] = []
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self.failure: Exception | None = None

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        self.encodes.append(call)
        self.arrived.set()
        assert self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        key = f"{call.inputs['image'].tobytes().decode()} {len(self.encodes)}"
        return {"image_key": np.array([key.encode()], dtype=object)}

    def is_ready(self, model: str) -> bool:
        return True

    def parameters(self, model: str) -> Mapping[str, str]:
        return {}

    def served(self) -> list[str]:
        return []

    def close(self) -> None:
        pass
