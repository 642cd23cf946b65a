"""Interface of trace spans, with an implementation that does nothing; ``otlp`` has the one that exports them."""

from __future__ import annotations

from collections.abc import Mapping


class Span:
    """A span that does nothing, so that untraced requests cost almost nothing."""

    __slots__ = ()

    def call(self, model: str) -> Span:
        """The child span of one call to Triton; the caller ends it."""
        return self

    def headers(self) -> dict[str, str]:
        """The headers that propagate this span to the called server."""
        return {}

    def end_call(self, result_json: bytes | None = None, failure: str | None = None) -> None:
        """
        Args:
            result_json: a segmenter's response, whose ``timings_ms`` become child spans.
            failure: the error code, if the call failed.
        """

    def end_request(self, status: int, caller: str) -> None: ...


NO_SPAN = Span()


class Tracing:
    """Creates spans; this one creates none."""

    def request(self, method: str, route: str, headers: Mapping[str, str], request_id: str) -> Span:
        """The span of a request; its parent is the one in the header ``traceparent``."""
        return NO_SPAN

    async def close(self) -> None:
        """Exports the remaining spans, for a few seconds at most."""


NO_TRACING = Tracing()
