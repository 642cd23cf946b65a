"""Values of prompts from untrusted JSON: rows of numbers, labels and boxes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.json_values import is_finite_number, short
from triton_sam.errors import InvalidInput

FOREGROUND, BACKGROUND = 1, 0


def refuse_unknown(entry: Mapping[str, Any], known: frozenset[str], name: str) -> None:
    """Raises InvalidInput for a key that is not known."""
    unknown = sorted(set(entry) - known)
    if unknown:
        raise InvalidInput(f"{name} has the unknown key {short(unknown[0][:60])}: known are {', '.join(sorted(known))}")


def is_empty(value: Any) -> bool:
    """Whether it is None, or has no entries."""
    if isinstance(value, np.ndarray):
        return value.size == 0
    return value is None or (hasattr(value, "__len__") and len(value) == 0)


def number_rows(rows: Any, columns: int, name: str) -> npt.NDArray[np.float32]:
    """[N,columns] float32; InvalidInput names the row that is not valid."""
    if is_empty(rows):
        return np.zeros((0, columns), np.float32)
    rows = rows.tolist() if isinstance(rows, np.ndarray) else rows
    if not isinstance(rows, Sequence) or isinstance(rows, str | bytes):
        raise InvalidInput(f"{name} is a list of [{', '.join('xy' if columns == 2 else ['x0', 'y0', 'x1', 'y1'])}]")
    for index, row in enumerate(rows):
        _check_row(row, columns, f"{name}: entry {index}")
    return np.asarray(rows, dtype=np.float64).astype(np.float32)


def _check_row(row: Any, columns: int, name: str) -> None:
    row = row.tolist() if isinstance(row, np.ndarray) else row
    if not isinstance(row, Sequence) or isinstance(row, str | bytes) or len(row) != columns:
        raise InvalidInput(f"{name} needs {columns} numbers, not {short(row)}")
    if not all(is_finite_number(value) for value in row):
        raise InvalidInput(f"{name} {short(row)} has a value that is not a finite number")


def label_row(
    labels: Any, count: int, where: str, *, name: str = "label", rows: str = "points"
) -> npt.NDArray[np.int32]:
    """[count] int32, all foreground if left out; ``name`` and ``rows`` are for the error messages."""
    if labels is None:
        return np.full(count, FOREGROUND, np.int32)
    listed = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not isinstance(listed, Iterable) or isinstance(listed, str | bytes | dict):
        raise InvalidInput(f"{name}s{where} is a list of 1 (foreground) and 0 (background)")
    listed = list(listed)
    if len(listed) != count:
        raise InvalidInput(
            f"{count} {rows}{where} have {len(listed)} labels: give one label for each {rows.removesuffix('s')}"
        )
    for index, label in enumerate(listed):
        if isinstance(label, bool) or label not in (FOREGROUND, BACKGROUND):
            raise InvalidInput(f"{name} {index}{where} is 1 (foreground) or 0 (background), not {short(label)}")
    return np.asarray(listed, dtype=np.int32).reshape(count)


def box_row(box: Any, where: str, name: str = "the box") -> npt.NDArray[np.float32]:
    """[4] float32, x0 < x1 and y0 < y1; ``name`` and ``where`` are for the error messages."""
    _check_row(box, 4, f"{name}{where}")
    row: npt.NDArray[np.float32] = np.asarray(box, dtype=np.float64).astype(np.float32)
    x0, y0, x1, y1 = row.tolist()
    if x1 <= x0 or y1 <= y0:
        raise InvalidInput(
            f"{name}{where} ({x0:g}, {y0:g}, {x1:g}, {y1:g}) is inverted or empty: "
            "give x0, y0, x1, y1 with x0 < x1 and y0 < y1"
        )
    return row
