"""A server in memory that acts out the protocol of videos, with faults at chosen requests."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triton_sam.client.core import ClientCore
from triton_sam.client.video_servers import VideoServer
from triton_sam.client.wire import Call, Outputs
from triton_sam.core.masks import encode
from triton_sam.errors import (
    InvalidInput,
    NotFound,
    ServerUnreachable,
    SessionExpired,
    TooManyObjects,
    TritonSamError,
    Unavailable,
)

#: How long a step waits for a missing one.
GAP_SECONDS = 0.02
#: Draws the mask of an object: (frame's file, object, memory of the session, [H,W]) -> bool.
Draw = Callable[[bytes, int, int, tuple[int, int]], Any]


@dataclass
class Session:
    """What a session remembers: a number that every step changes, so that a missing or doubled one shows."""

    next: int
    size: tuple[int, int]
    memory: int = 0
    objects: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    waiting: list[asyncio.Event] = field(default_factory=list)
    epoch: int = 0
    dead: bool = False

    def wake(self) -> None:
        for event in self.waiting:
            event.set()
        self.waiting.clear()


def by_memory(image: bytes, name: int, memory: int, size: tuple[int, int]) -> Any:
    """A mask that depends on everything that came before."""
    bits = np.random.default_rng([zlib.crc32(image), name, memory])
    return bits.random((size[1], size[0])) > 0.5


class FakeVideoServer:
    """Answers as the segmenter does. ``faults``: number of the request, counted from 0 -> what happens to it."""

    def __init__(self, faults: Mapping[int, str | TritonSamError] | None = None, draw: Draw = by_memory) -> None:
        self.faults = dict(faults or {})
        self.draw = draw
        self.sessions: dict[str, Session] = {}
        self.calls: list[Call] = []
        self.in_flight = self.most_in_flight = 0
        self.most_state = 0
        self.down = False
        self.closed = 0

    # the transports of a client

    async def infer(self, call: Call) -> Outputs:
        number = len(self.calls)
        self.calls.append(call)
        fault = self.faults.get(number)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            return await self._answer(call, fault)
        finally:
            self.in_flight -= 1

    async def can_cancel_natively(self) -> bool:
        return False

    async def close(self) -> None:
        self.closed += 1

    # the protocol

    async def _answer(self, call: Call, fault: str | TritonSamError | None) -> Outputs:
        if self.down or fault == "unreachable":
            raise ServerUnreachable("no server responds")
        if fault in ("killed", "expired"):
            self.kill()
            if fault == "killed":
                raise ServerUnreachable("the connection was lost")
        document = json.loads(call.inputs["prompt_json"][0])
        video = document["video"]
        assert document["format"] == "rle"
        assert call.parameters["session_id"] == video["session"]
        if video["do"] == "open":
            if isinstance(fault, TritonSamError):
                raise fault
            return self._open(call, video)
        session = self.sessions.get(video["session"])
        if session is None:
            raise SessionExpired("the session is unknown")
        await self._turn(session, video["step"])
        try:
            if isinstance(fault, TritonSamError):
                raise fault
            outputs = self._take(session, call, video)
        except TritonSamError:
            session.epoch += 1
            session.wake()
            raise
        session.next += 1
        session.wake()
        if fault == "lost":
            raise ServerUnreachable("the connection was lost")
        return outputs

    def kill(self) -> None:
        for session in self.sessions.values():
            session.dead = True
            session.wake()
        self.sessions.clear()

    def _open(self, call: Call, video: Mapping[str, Any]) -> Outputs:
        if "video_state" in call.inputs:
            known = json.loads(call.inputs["video_state"].tobytes())
            session = Session(video["step"] + 1, (video["width"], video["height"]), **known)
        else:
            assert video["step"] == 0
            session = Session(1, (video["width"], video["height"]))
        self.sessions[video["session"]] = session
        return self._outputs(session, call, video, [])

    async def _turn(self, session: Session, step: int) -> None:
        epoch = session.epoch
        while step > session.next:
            event = asyncio.Event()
            session.waiting.append(event)
            try:
                await asyncio.wait_for(event.wait(), GAP_SECONDS)
            except asyncio.TimeoutError:
                raise Unavailable(f"step {session.next} did not come") from None
            if session.dead:
                raise ServerUnreachable("the connection was lost")
            if session.epoch > epoch:
                raise Unavailable(f"step {step} was not taken, because a step before it failed")
        if step < session.next:
            raise InvalidInput(f"step {step} was taken already")

    def _take(self, session: Session, call: Call, video: Mapping[str, Any]) -> Outputs:
        do, image = video["do"], call.inputs["image"].tobytes() if "image" in call.inputs else b""
        if do == "state":
            return self._outputs(session, call, video, [])
        if do == "prompt":
            if video["object"] not in session.objects:
                if len(session.objects) >= 3:
                    raise TooManyObjects("the session has 3 objects already")
                session.objects.append(video["object"])
        elif do == "track":
            assert session.objects
            session.frames.append(video["frame"])
            assert len(session.frames) < 10_000
        elif do == "remove":
            session.objects.remove(video["object"])
        elif do == "reset":
            session.objects.clear()
        told = {key: value for key, value in video.items() if key not in ("session", "step", "state")}
        session.memory = zlib.crc32(json.dumps(told, sort_keys=True).encode() + image, session.memory)
        shown = session.objects if do in ("prompt", "track") else []
        masks = [self.draw(image, name, session.memory, session.size) for name in shown]
        return self._outputs(session, call, video, masks)

    def _outputs(self, session: Session, call: Call, video: Mapping[str, Any], masks: list[Any]) -> Outputs:
        entries = [
            encode(np.asarray(mask, np.bool_), "rle") | {"score": 0.5, "object": name}
            for name, mask in zip(session.objects, masks, strict=False)
        ]
        about = {"session": video["session"], "step": video["step"], "objects": session.objects}
        about["appearance"] = [1.0 if np.any(mask) else -1.0 for mask in masks]
        result = {"video": about, "masks": entries, "width": session.size[0], "height": session.size[1]}
        outputs: dict[str, Any] = {"result_json": np.array([json.dumps(result).encode()], object)}
        if "video_state" in call.outputs:
            assert video["do"] == "state" or video["state"]
            state = json.dumps({"memory": session.memory, "objects": session.objects}).encode()
            self.most_state = max(self.most_state, len(state))
            outputs["video_state"] = np.frombuffer(state, np.uint8)
        return outputs

    def done(self, do: str) -> list[dict[str, Any]]:
        """The documents of the requests that did this, in the order of their arrival."""
        found = [json.loads(call.inputs["prompt_json"][0])["video"] for call in self.calls]
        return [video for video in found if video["do"] == do]


class LookUps:
    """The blocking side, which is only asked for names."""

    def __init__(self, models: Mapping[str, str]) -> None:
        self.models = models
        self.closed = False

    def infer(self, call: Call) -> Outputs:
        raise AssertionError

    def is_ready(self, model: str) -> bool:
        return model in self.models

    def parameters(self, model: str) -> Mapping[str, str]:
        if model not in self.models:
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        return {"model_id": self.models[model]}

    def served(self) -> list[str]:
        return list(self.models)

    def close(self) -> None:
        self.closed = True


def reached(*servers: FakeVideoServer, model: str = "sam2") -> list[VideoServer]:
    """These servers as a client has them."""
    from triton_sam.client.endpoint import Endpoint

    return [
        VideoServer(
            Endpoint("localhost:1", 1.0), ClientCore(model, retries=0), LookUps({"sam2": "sam2.1:tiny"}), server
        )
        for server in servers
    ]
