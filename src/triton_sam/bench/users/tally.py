"""Counts and latencies of what people did, in one process or in all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

ANSWERED, SUPERSEDED = "answered", "superseded"
#: Kinds of errors that no server sends.
CONNECTION_LOST, UNREACHABLE, NO_ANSWER = "connection_lost", "unreachable", "no_answer"
_KINDS = ("hovers", "last_hovers", "clicks", "images")


class Outcome(NamedTuple):
    """How a request ended: ``answered``, ``superseded`` or the kind of an error, with its message."""

    kind: str
    message: str = ""

    @property
    def is_error(self) -> bool:
        return self.kind not in (ANSWERED, SUPERSEDED)


@dataclass(slots=True)
class Actions:
    """All actions of one kind. Each is made once and ends once, so ``made`` is the sum of the others in the end.

    Attributes:
        seconds: from the action to its answer, for each that was answered.
        errors: kind -> count.
    """

    made: int = 0
    seconds: list[float] = field(default_factory=list)
    superseded: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def answered(self) -> int:
        return len(self.seconds)

    def end(self, outcome: Outcome, seconds: float) -> None:
        """Counts the end of one action."""
        if outcome.kind == ANSWERED:
            self.seconds.append(seconds)
        elif outcome.kind == SUPERSEDED:
            self.superseded += 1
        else:
            self.errors[outcome.kind] += 1

    def merge(self, other: Actions) -> None:
        self.made += other.made
        self.seconds += other.seconds
        self.superseded += other.superseded
        self.errors += other.errors


@dataclass(slots=True)
class Tally:
    """What people did in the time that counts.

    Attributes:
        last_hovers: the hovers after which the mouse rested; ``hovers`` has them too.
        unsent: superseded hovers that had not left the client.
        skipped: steps that a person left out, waiting for an image or after an error.
        late: seconds by which each step came later than planned: the load generator's own delay.
        messages: kind of an error -> the first message of that kind.
    """

    hovers: Actions = field(default_factory=Actions)
    last_hovers: Actions = field(default_factory=Actions)
    clicks: Actions = field(default_factory=Actions)
    images: Actions = field(default_factory=Actions)
    unsent: int = 0
    skipped: int = 0
    late: list[float] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)

    @property
    def errors(self) -> Counter[str]:
        """Kind -> count, of all actions."""
        return self.hovers.errors + self.clicks.errors + self.images.errors

    def as_json(self) -> dict[str, Any]:
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in _KINDS:
            actions: Actions = document[name]
            document[name] = {each.name: getattr(actions, each.name) for each in fields(actions)}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Tally:
        actions = {name: Actions(**{**document[name], "errors": Counter(document[name]["errors"])}) for name in _KINDS}
        return cls(**{**document, **actions})


def merged(tallies: Iterable[Tally]) -> Tally:
    """The tallies of several processes as one."""
    whole = Tally()
    for tally in tallies:
        for name in _KINDS:
            getattr(whole, name).merge(getattr(tally, name))
        whole.unsent += tally.unsent
        whole.skipped += tally.skipped
        whole.late += tally.late
        whole.messages = {**tally.messages, **whole.messages}
    return whole
