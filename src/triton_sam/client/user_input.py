"""What users pass as arrays and lists -> checked prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.prompts import ObjectPrompt, PromptLimits, object_prompt
from triton_sam.errors import InvalidInput

#: The server has limits of its own; the client only checks shapes and finiteness.
_NO_LIMITS = PromptLimits(max_points=2**31, max_objects=2**31, mask_side=None)
_OBJECT_KEYS = frozenset({"points", "labels", "box", "mask_input"})


def checked_entry(entry: Mapping[str, Any], index: int) -> ObjectPrompt:
    unknown = sorted(map(str, set(entry) - _OBJECT_KEYS)) if isinstance(entry, Mapping) else [type(entry).__name__]
    if unknown:
        raise InvalidInput(f"object {index} is a mapping of {', '.join(sorted(_OBJECT_KEYS))}, not of {unknown[0]!r}")
    return checked(**entry, where=f" of object {index}")


def checked(
    points: Any = None, labels: Any = None, box: Any = None, mask_input: Any = None, where: str = ""
) -> ObjectPrompt:
    if box is not None:
        box = _array(box, f"the box{where}").reshape(-1)
    if points is not None:
        points = _array(points, f"points{where}")
        points = points[0] if points.ndim == 3 and len(points) == 1 else points
    if labels is not None:
        labels = _array(labels, f"labels{where}", None).reshape(-1)
    prompt = object_prompt(points, labels, box, mask_input, limits=_NO_LIMITS, where=where)
    if prompt is None:
        raise InvalidInput(f"the prompt{where} is empty: give at least one point, a box or a mask_input")
    return prompt


def _array(values: Any, name: str, dtype: type[np.float64] | None = np.float64) -> npt.NDArray[Any]:
    try:
        return np.asarray(values, dtype=dtype)
    except (ValueError, TypeError):
        raise InvalidInput(f"{name}: these are no numbers, or not as many in each row") from None
