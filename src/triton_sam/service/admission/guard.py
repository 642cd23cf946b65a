"""Who may come in, and how often."""

from __future__ import annotations

import time

from prometheus_client import Counter

from triton_sam.errors import NotAuthorised, RateLimited
from triton_sam.service.rates import Buckets, Clock, Rate, address_name
from triton_sam.service.tokens import ANONYMOUS, Caller, Keyring
from triton_sam.settings import Settings

REQUEST, HOVER = "request", "hover"
_TAKEN, _LIMITED = "taken", "limited"


def not_authorised() -> NotAuthorised:
    """The one refusal, which does not tell a missing token from a wrong one."""
    return NotAuthorised("the token is missing or wrong: send the header `Authorization: Bearer <token>`")


class Guard:
    """One service's tokens and rates. Belongs to the event loop."""

    def __init__(self, settings: Settings, counter: Counter, clock: Clock = time.monotonic) -> None:
        """
        Args:
            counter: with the labels caller, kind and outcome.
        """
        self._keyring = Keyring(settings, clock)
        # Apart: whoever has many addresses shall not make a token's use forgotten.
        self._tokens, self._addresses = Buckets(clock), Buckets(clock)
        self._anonymous = Rate.of(settings.rate, settings.rate_burst) if settings.rate else None
        self._counter = counter

    @property
    def needs_token(self) -> bool:
        return self._keyring.needs_token

    def knows(self, offered: str) -> bool:
        """Whether a token is right, or none is needed."""
        return not self.needs_token or self._keyring.find(offered) is not None

    def enter(self, offered: str, address: str) -> Caller | None:
        """Whom a token belongs to, None where none is needed.

        Wrong ones count: NotAuthorised for one, RateLimited for many of them from one address. A right one still comes
        in then, or whoever guesses would lock out all who share his address.
        """
        caller = self._keyring.find(offered) if self.needs_token else None
        if caller is None and self.needs_token:
            self._take_anonymous(address, REQUEST)
            raise not_authorised()
        return caller

    def take(self, caller: Caller | None, address: str, kind: str = REQUEST) -> None:
        """Counts one request or message; RateLimited where the rate is used up."""
        if caller is None:
            self._take_anonymous(address, kind)
            self._counter.labels(ANONYMOUS, kind, _TAKEN).inc()
            return
        if caller.rate is not None:
            try:
                self._tokens.take(caller.name, caller.rate)
            except RateLimited:
                self._counter.labels(caller.name, kind, _LIMITED).inc()
                raise
        self._counter.labels(caller.name, kind, _TAKEN).inc()

    def still(self, caller: Caller | None) -> Caller | None:
        """A caller of before, with the rate of now; NotAuthorised where the token is not valid any more."""
        if caller is None:
            return None
        now = self._keyring.still(caller)
        if now is None:
            raise not_authorised()
        return now

    def _take_anonymous(self, address: str, kind: str) -> None:
        if self._anonymous is not None:
            try:
                self._addresses.take(address_name(address), self._anonymous)
            except RateLimited:
                self._counter.labels(ANONYMOUS, kind, _LIMITED).inc()
                raise
