"""Checks of what users pass: images, arrays and lists."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.prompts import ObjectPrompt, PromptLimits, object_prompt
from triton_sam.errors import InvalidInput

#: A path, the bytes of an image file, [H,W(,3|4)] (RGB) of any depth, or a Pillow image.
ImageLike = str | PathLike[str] | bytes | npt.NDArray[Any] | Image.Image

#: The server enforces its own limits; the client only checks shapes and finiteness.
_NO_LIMITS = PromptLimits(max_points=2**31, max_objects=2**31, mask_side=None)
_OBJECT_KEYS = frozenset({"points", "labels", "box", "mask_input"})


def checked_entry(entry: Mapping[str, Any], index: int) -> ObjectPrompt:
    """One entry of a list of objects as a prompt; InvalidInput names the entry by its index."""
    unknown = sorted(map(str, set(entry) - _OBJECT_KEYS)) if isinstance(entry, Mapping) else [type(entry).__name__]
    if unknown:
        raise InvalidInput(
            f"object {index} must be a mapping with the keys {', '.join(sorted(_OBJECT_KEYS))}, not {unknown[0]!r}"
        )
    return checked(**entry, where=f" of object {index}")


def checked(
    points: Any = None, labels: Any = None, box: Any = None, mask_input: Any = None, where: str = ""
) -> ObjectPrompt:
    """One object's prompt; InvalidInput if it is malformed or empty.

    Args:
        points: [P,2] or [1,P,2], original pixels, xy; labels: [P]; box: [4]; mask_input: logits.
        where: added to the names in messages, for example " of object 2".
    """
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
        raise InvalidInput(f"{name} must be numbers, with equally many in each row") from None
