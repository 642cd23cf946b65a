"""What a job knows about itself, for the files that it writes at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Images that failed for the same reason.

    Attributes:
        examples: names of some.
    """

    reason: str
    count: int
    examples: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class JobFacts:
    """How a job went.

    Attributes:
        began: of its first run, with a time zone.
        seconds: that it has run, all its runs together.
        done, failed, waiting: numbers of images.
        failures: the most frequent first.
        definition: what the report shows of the job's definition, by words that a user knows.
        categories: COCO's, in its form; empty if the prompts have none.
        version: of triton-sam.
        from_coco: prompts come from a COCO file, whose ids of images and annotations stay; what has none there gets
            higher numbers.
        clean: as in the job's options.
    """

    began: datetime
    seconds: float
    done: int
    failed: int = 0
    waiting: int = 0
    failures: Sequence[FailureGroup] = ()
    definition: Mapping[str, Any] = field(default_factory=dict)
    categories: Sequence[Mapping[str, Any]] = ()
    version: str = ""
    from_coco: bool = False
    clean: int | None = None
