"""The Triton server that the service forwards to, as the service sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from triton_sam.client.async_transport import AsyncTransport
from triton_sam.models.specs import ModelSpec
from triton_sam.models.vlm_specs import VlmSpec

LossCallback = Callable[[str, tuple[str, ...]], None]
OnLoss = Callable[[LossCallback], Callable[[], None]]


def no_loss_events(callback: LossCallback) -> Callable[[], None]:
    """An ``on_loss`` for a server without a supervisor: the callback is never called."""
    return lambda: None


@dataclass(frozen=True, slots=True)
class Upstream:
    """A Triton server and its supervisor.

    Attributes:
        status: returns the supervisor's status; ``state`` is "ready" while masks are served.
        segmenters: Triton name -> catalogue row of the served segmenters. May read files, so it is called on threads.
        triton_url: Triton's HTTP address.
        metrics_url: of Triton's own metrics; None if it has none.
        on_loss: subscribes a callback, which gets the reason and the lost models on the supervisor's thread, at the
            moment when the supervisor gives them up; returns a function that unsubscribes.
        vlms: as ``segmenters``, for vision-language models, by the names of their one-response models.
        transport: used instead of a connection to ``triton_url``, for tests.
    """

    status: Callable[[], Mapping[str, object]]
    segmenters: Callable[[], Mapping[str, ModelSpec]]
    triton_url: str = "http://localhost:8000"
    metrics_url: str | None = None
    on_loss: OnLoss = no_loss_events
    transport: AsyncTransport | None = None
    vlms: Callable[[], Mapping[str, VlmSpec]] = dict

    def missing(self) -> frozenset[str]:
        """Triton names of models that are set up but failed to load."""
        return missing_of(self.status())


def served_segmenters(repository: Path, names: Collection[str]) -> dict[str, ModelSpec]:
    """For ``segmenters``. Read each time: a newer version, or another default model, may have come since the start."""
    from triton_sam.repository.segmenters import find_segmenters  # needs tritonclient, and the app alone does not

    return {name: spec for name, spec in find_segmenters(repository).items() if name in names}


def missing_of(status: Mapping[str, object]) -> frozenset[str]:
    """As :meth:`Upstream.missing`, from a status that is known already."""
    names = status.get("missing")
    return frozenset(names) if isinstance(names, tuple | list) else frozenset()
