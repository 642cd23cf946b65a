"""The client of video sessions that the service uses: its requests go through the gateway to Triton."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client import video_flows
from triton_sam.client.core import ClientCore
from triton_sam.client.endpoint import Endpoint
from triton_sam.client.video_async import AsyncSAM2VideoClient
from triton_sam.client.video_servers import VideoServer
from triton_sam.client.video_state import VideoState
from triton_sam.client.wire import Call, Outputs
from triton_sam.service.gateway import Gateway
from triton_sam.service.served_models import ServedSegmenter
from triton_sam.video.found import VideoFrame

#: One is computed, and the next one waits for it: what is left of a propagation that is stopped.
_IN_FLIGHT = 2


class ServiceVideoClient(AsyncSAM2VideoClient):
    """One for each model; masks stay run lengths."""

    def __init__(self, gateway: Gateway, served: ServedSegmenter) -> None:
        endpoint = Endpoint("http://localhost:1", 1.0)  # nothing is sent to it: the transports below are used
        core = ClientCore(served.name, retries=0)
        server = VideoServer(endpoint, core, _Known(served), _ThroughGateway(gateway))
        super().__init__(model_type=served.name, in_flight=_IN_FLIGHT, servers=[server])

    # Many parameters: a prompt.
    async def prompt(
        self,
        state: VideoState,
        frame: int,
        name: int,
        points: npt.ArrayLike | None,
        labels: npt.ArrayLike | None,
        box: npt.ArrayLike | None,
        *,
        clear_old_points: bool = True,
    ) -> VideoFrame:
        """All objects of the frame, after a prompt."""
        flow = video_flows.prompt_points(state, frame, name, points, labels, box, clear_old_points=clear_old_points)
        return await self._run(state, flow)

    async def prompt_mask(self, state: VideoState, frame: int, name: int, mask: npt.NDArray[np.bool_]) -> VideoFrame:
        """The same for a mask [H,W]."""
        return await self._run(state, video_flows.prompt_mask(state, frame, name, mask))

    async def clear(self, state: VideoState, frame: int, name: int) -> VideoFrame:
        """All objects of the frame, without the prompts of one of them there."""
        return await self._run(state, video_flows.clear_frame(state, frame, name))

    def tracked(
        self, state: VideoState, first: int, most: int | None, *, reverse: bool
    ) -> AsyncGenerator[VideoFrame, None]:
        """As :meth:`track_frames`, to be closed."""
        return self._frames(state, first, most, reverse=reverse)


class _Known:
    """Answers the client's question for the model's name, which the service knows."""

    def __init__(self, served: ServedSegmenter) -> None:
        self._served = served

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        raise NotImplementedError("steps go through the gateway: this only tells what is served")

    def is_ready(self, model: str) -> bool:
        return True

    def parameters(self, model: str) -> Mapping[str, str]:
        return {"model_id": model}

    def served(self) -> list[str]:
        return [self._served.name]

    def close(self) -> None:
        pass


class _ThroughGateway:
    """Steps of videos, sent by the gateway: it knows when the server was lost."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def infer(self, call: Call) -> Outputs:
        return await self._gateway.send_step(call)

    async def stream(self, call: Call) -> AsyncGenerator[Outputs, None]:
        raise NotImplementedError("a step of a video has one answer")
        yield {}  # makes it a generator, as the protocol of transports has it

    async def can_cancel_natively(self) -> bool:
        return False

    async def close(self) -> None:
        """The gateway's connection stays."""


async def end_within(seconds: float, work: Any) -> None:
    """Waits for a clean-up that must not fail, for so long at most."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(work, seconds)
