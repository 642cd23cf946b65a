"""What the service knows of the server behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from triton_sam.client.async_transport import AsyncTransport
from triton_sam.models.specs import ModelSpec
from triton_sam.models.vlm_specs import VlmSpec

LossCallback = Callable[[str, tuple[str, ...]], None]
OnLoss = Callable[[LossCallback], Callable[[], None]]


def never_lost(callback: LossCallback) -> Callable[[], None]:
    """For a server that nobody watches: the callback is never called, and there is nothing to unsubscribe."""
    return lambda: None


@dataclass(frozen=True, slots=True)
class Backend:
    """A Triton server and whoever watches it.

    Attributes:
        status: asks the supervisor; ``state`` is "ready" while masks are served.
        segmenters: Triton name -> catalogue row of what is served now. May read files, so it is called on threads.
        triton_url: Triton's HTTP address.
        metrics_url: where Triton's own metrics are; None where they cannot be had.
        on_loss: subscribes a callback, which gets the reason and the lost models, on the supervisor's thread, at the
            moment when they are given up; returns the unsubscribe.
        vlms: the same of vision-language models, under the names that answer once for each request.
        transport: in place of a connection to ``triton_url``, for tests.
    """

    status: Callable[[], Mapping[str, object]]
    segmenters: Callable[[], Mapping[str, ModelSpec]]
    triton_url: str = "http://localhost:8000"
    metrics_url: str | None = None
    on_loss: OnLoss = never_lost
    transport: AsyncTransport | None = None
    vlms: Callable[[], Mapping[str, VlmSpec]] = dict

    def missing(self) -> frozenset[str]:
        """Triton names of models that are set up and do not load."""
        return missing_of(self.status())


def missing_of(status: Mapping[str, object]) -> frozenset[str]:
    """As :meth:`Backend.missing`, of a status that was asked for already."""
    names = status.get("missing")
    return frozenset(names) if isinstance(names, tuple | list) else frozenset()
