"""Performs the core's operations over a blocking transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from triton_sam.client import flows
from triton_sam.client.core import ClientCore, ImageFile, Parameters
from triton_sam.client.flows import EncodeAgain, Flow, Infer, ListServed, Pause, ReadParameters, Step
from triton_sam.client.transport import Transport
from triton_sam.client.wire import Call, OnMessage, Outputs
from triton_sam.errors import TritonSamError

T = TypeVar("T")
#: Sends a call and follows it; returns the last message.
Follow = Callable[[Call, OnMessage], Outputs]


class ModelLink:
    """Blocking calls to one model. Thread-safe if its transport is."""

    def __init__(self, transport: Transport, core: ClientCore, follow: Follow | None = None) -> None:
        """
        Args:
            follow: sends and follows calls; only requests with progress need it.
        """
        self.transport = transport
        self.core = core
        self._follow = follow

    def encode(self, image: ImageFile, parameters: Parameters | None = None) -> str:
        """As :meth:`ClientCore.encode`."""
        return self.run(self.core.encode(image, parameters))

    def infer(
        self,
        inputs: Outputs,
        outputs: Sequence[str],
        parameters: Parameters | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Outputs:
        """As :meth:`ClientCore.infer`."""
        return self.run(self.core.infer(inputs, outputs, parameters, headers))

    def name(self) -> str:
        """As :meth:`ClientCore.name`."""
        return self.run(self.core.name())

    def served(self) -> list[str]:
        """Names of the served segmenters; empty if the server does not say."""
        try:
            return self.transport.served()
        except TritonSamError:
            return []

    def run(self, flow: Flow[T], encode_again: Callable[[], str] | None = None) -> T:
        """Performs an operation.

        Args:
            encode_again: encodes the operation's image and returns its new key; clicks need it.
        """

        def perform(step: Step) -> Any:
            match step:
                case Infer(call, on_message):
                    if on_message is None:
                        return self.transport.infer(call)
                    assert self._follow is not None  # only a client that has it asks for progress
                    return self._follow(call, on_message)
                case ReadParameters(model):
                    return self.transport.parameters(model)
                case ListServed():
                    return self.served()
                case Pause(seconds):
                    time.sleep(seconds)
                    return None
                case EncodeAgain():
                    assert encode_again is not None  # only a click yields this
                    return encode_again()

        return flows.run(flow, perform)
