"""What ``triton-sam doctor`` finds."""

from __future__ import annotations

from dataclasses import dataclass

FINE, NOTE, WRONG, OPTIONAL = "fine", "note", "wrong", "-"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        state: fine; note (worth knowing, and nothing that is set up suffers); wrong (it hinders what is set up); or
            optional, for what is not installed and not needed.
    """

    name: str
    state: str
    text: str
