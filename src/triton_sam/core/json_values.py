"""Values from untrusted JSON: is it a number, and how is it named in an error message."""

from __future__ import annotations

from typing import Any

import numpy as np

#: No image is larger, and float32 cannot represent pixels beyond it.
LARGEST = 1e9
_KINDS = {
    dict: "an object",
    list: "a list",
    tuple: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def is_finite_number(value: Any) -> bool:
    """Whether it is a number within +-1e9; booleans are none."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(-LARGEST < value < LARGEST)  # false for NaN; no conversion, because 10**400 has no float


def kind(value: Any) -> str:
    """What it is in JSON, with an article: "an object", "a list", "a string", "a number", "null"."""
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def short(value: Any) -> str:
    """Its text, of 60 characters at most."""
    try:
        text = repr(value)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= 60 else f"{text[:57]}..."
