"""Spans of a trace as the service uses them; these do nothing. ``otlp`` has the ones that are sent."""

from __future__ import annotations

from collections.abc import Mapping


class Span:
    """Something that takes time. This one is none: what is not traced costs a call that does nothing."""

    __slots__ = ()

    def call(self, model: str) -> Span:
        """The child for one call of Triton; to be ended."""
        return self

    def headers(self) -> dict[str, str]:
        """What whoever is called needs to put its own spans below this one."""
        return {}

    def end_call(self, result_json: bytes | None = None, failure: str | None = None) -> None:
        """
        Args:
            result_json: a segmenter's answer, whose ``timings_ms`` become children.
            failure: the kind of error in place of an answer.
        """

    def end_request(self, status: int, caller: str) -> None: ...


NO_SPAN = Span()


class Tracing:
    """Makes spans; this one makes none."""

    def request(self, method: str, route: str, headers: Mapping[str, str], request_id: str) -> Span:
        """The span of a request, below the one that its header ``traceparent`` names."""
        return NO_SPAN

    async def close(self) -> None:
        """Sends what is still here, for a few seconds at most."""


NO_TRACING = Tracing()
