"""Values from untrusted JSON: is it a number, and how is it named in an error message."""

from __future__ import annotations

from typing import Any

import numpy as np

#: No image is larger, and float32 cannot represent pixels beyond it.
LARGEST = 1e9


def is_finite_number(value: Any) -> bool:
    """Whether it is a number within +-1e9; booleans are none."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(-LARGEST < value < LARGEST)  # false for NaN; no conversion, because 10**400 has no float


def kind(value: Any) -> str:
    """The JSON name of its type: "object", "list", "string", "null"."""
    return {dict: "object", list: "list", str: "string", type(None): "null"}.get(type(value), type(value).__name__)


def short(value: Any) -> str:
    """Its text, of 60 characters at most."""
    try:
        text = repr(value)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= 60 else f"{text[:57]}..."
