"""How far an engine is from its full speed. It answers rightly at every stage."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Stage(str, Enum):
    """The stages of a start, in order."""

    UNCOMPILED = "uncompiled"
    """It serves, and compiled code is being loaded, or there is none."""
    COMPILING = "compiling"
    """It serves, and another process compiles for it."""
    FULL_SPEED = "full speed"


@dataclass(frozen=True, slots=True)
class Readiness:
    """A stage of an engine.

    Attributes:
        seconds: when the stage began, counted from the start of loading.
        detail: why it stays at this stage; empty if it goes on, or has arrived.
    """

    stage: Stage
    seconds: float = 0.0
    detail: str = ""

    def as_json(self) -> dict[str, str | float]:
        """For answers to pings, and from there for ``/health``."""
        return {"stage": self.stage.value, "seconds": self.seconds, "detail": self.detail}


#: Of engines that have nothing to compile.
AT_ONCE = Readiness(Stage.FULL_SPEED)
