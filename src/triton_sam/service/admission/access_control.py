"""Access control of one service: API tokens and rate limits together."""

from __future__ import annotations

import time

from prometheus_client import Counter

from triton_sam.errors import NotAuthorised, RateLimited
from triton_sam.service.api_tokens import ANONYMOUS, Caller, TokenStore
from triton_sam.service.rate_limits import Buckets, Clock, Rate, TokenBuckets, address_name
from triton_sam.settings import Settings

REQUEST, HOVER = "request", "hover"
_TAKEN, _LIMITED = "taken", "limited"


def not_authorised() -> NotAuthorised:
    """The same error for a missing and for a wrong token, so that it reveals nothing."""
    return NotAuthorised("the token is missing or wrong: send the header `Authorization: Bearer <token>`")


class AccessControl:
    """Authenticates callers and counts their requests against their rate limits. Belongs to the event loop."""

    def __init__(
        self,
        settings: Settings,
        counter: Counter,
        clock: Clock = time.monotonic,
        buckets: tuple[Buckets, Buckets] | None = None,
    ) -> None:
        """
        Args:
            counter: with the labels caller, kind and outcome.
            buckets: of callers and of addresses; None: in the memory of this process.
        """
        self._tokens = TokenStore(settings, clock)
        # Separate, so that a client with many addresses cannot evict the bucket of a token.
        self._caller_buckets, self._address_buckets = buckets or (TokenBuckets(clock), TokenBuckets(clock))
        self._anonymous_rate = Rate.of(settings.rate, settings.rate_burst) if settings.rate else None
        self._counter = counter

    @property
    def needs_token(self) -> bool:
        return self._tokens.needs_token

    def accepts(self, offered: str) -> bool:
        """Whether a token is valid, or none is needed."""
        return not self.needs_token or self._tokens.find(offered) is not None

    def authenticate(self, offered: str, address: str) -> Caller | None:
        """The caller that a token belongs to; None if no token is needed.

        A wrong token raises NotAuthorised and counts against the address; too many of them raise RateLimited. A valid
        token is still accepted then, or an attacker could lock out everyone behind the same address.
        """
        caller = self._tokens.find(offered) if self.needs_token else None
        if caller is None and self.needs_token:
            self._check_anonymous_rate(address, REQUEST)
            raise not_authorised()
        return caller

    def check_rate(self, caller: Caller | None, address: str, kind: str = REQUEST) -> None:
        """Counts one request or message; raises RateLimited if the rate is used up."""
        if caller is None:
            self._check_anonymous_rate(address, kind)
            self._counter.labels(ANONYMOUS, kind, _TAKEN).inc()
            return
        if caller.rate is not None:
            try:
                self._caller_buckets.take(caller.name, caller.rate)
            except RateLimited:
                self._counter.labels(caller.name, kind, _LIMITED).inc()
                raise
        self._counter.labels(caller.name, kind, _TAKEN).inc()

    def revalidate(self, caller: Caller | None) -> Caller | None:
        """The same caller with its current rate; raises NotAuthorised if its token is no longer valid."""
        if caller is None:
            return None
        current = self._tokens.revalidate(caller)
        if current is None:
            raise not_authorised()
        return current

    def _check_anonymous_rate(self, address: str, kind: str) -> None:
        if self._anonymous_rate is not None:
            try:
                self._address_buckets.take(address_name(address), self._anonymous_rate)
            except RateLimited:
                self._counter.labels(ANONYMOUS, kind, _LIMITED).inc()
                raise
