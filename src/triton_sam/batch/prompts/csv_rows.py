"""Rows of a CSV file with prompts, checked."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from triton_sam.batch.inputs.faults import fault_of_file
from triton_sam.core.json_values import LARGEST
from triton_sam.errors import InvalidInput

POINTS = ("x", "y", "label")
BOXES = ("x0", "y0", "x1", "y1")
_DELIMITERS = (",", ";", "\t")
_FORMS = "file,x,y,label or file,x0,y0,x1,y1"


@dataclass(frozen=True, slots=True)
class Header:
    """What the first row says."""

    delimiter: str
    width: int
    """Cells of each row."""
    columns: Mapping[str, int]
    values: tuple[str, ...]
    """:data:`POINTS` or :data:`BOXES`."""

    @property
    def has_objects(self) -> bool:
        return "object" in self.columns


@dataclass(frozen=True, slots=True)
class Row:
    """One point or box.

    Attributes:
        where: names the file and the line in messages.
        values: as the header has them, numbers.
        object: its cell of that column; empty without the column.
    """

    where: str
    file: str
    values: tuple[float, ...]
    object: str


def read_rows(path: Path) -> tuple[Header, Iterator[Row]]:
    """The header, and the rows in a stream; InvalidInput says in which line is what."""
    header = _header(path)
    return header, _rows(path, header)


def _header(path: Path) -> Header:
    for line in _lines(path):
        found = [_header_of(path, line, delimiter) for delimiter in _DELIMITERS if delimiter in line]
        best = next((header for header in found if isinstance(header, Header)), None)
        if best is not None:
            return best
        shown = line.strip()[:80]
        raise InvalidInput(
            f"{path}, line 1: {found[0] if found else f'{shown!r} is no header'}; the header must be {_FORMS}"
        )
    raise InvalidInput(f"{path} is empty: its first line must be {_FORMS}")


def _header_of(path: Path, line: str, delimiter: str) -> Header | str:
    """The header by this delimiter, or what is wrong with it."""
    names = [name.strip().lower() for name in next(csv.reader([line], delimiter=delimiter))]
    known = {"file", "object", *POINTS, *BOXES}
    twice = [name for name in names if name in known and names.count(name) > 1]
    if twice:
        return f'it has the column "{twice[0]}" twice'
    columns = {name: place for place, name in enumerate(names) if name in known}
    points, boxes = ([name for name in form if name in columns] for form in (POINTS, BOXES))
    if len(points) == len(POINTS) and len(boxes) == len(BOXES):
        return "it has the columns of points and of boxes"
    values = POINTS if len(points) > len(boxes) or (points and len(points) == len(POINTS)) else BOXES
    missing = [name for name in ("file", *values) if name not in columns]
    if missing:
        return f"{line.strip()[:80]!r} has no column " + " and no column ".join(f'"{name}"' for name in missing)
    return Header(delimiter, len(names), columns, values)


def _rows(path: Path, header: Header) -> Iterator[Row]:
    reader = csv.reader(_lines(path), delimiter=header.delimiter)
    try:
        next(reader)
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield _row(cells, header, f"{path}, line {reader.line_num}")
    except csv.Error as error:
        raise InvalidInput(f"{path}, line {reader.line_num}: it cannot be read as CSV ({error})") from None


def _row(cells: list[str], header: Header, where: str) -> Row:
    if len(cells) != header.width:
        raise InvalidInput(
            f"{where} has {len(cells)} cell(s) and the header {header.width}: "
            f'put "quotation marks" around a cell that has a {header.delimiter!r}'
        )
    file = cells[header.columns["file"]].strip().replace("\\", "/").removeprefix("./")
    if not file:
        raise InvalidInput(f'{where}: its "file" is empty: write the path of an image')
    values = tuple(_number(cells[header.columns[name]], name, where) for name in header.values)
    name = cells[header.columns["object"]].strip() if header.has_objects else ""
    if header.has_objects and not name:
        raise InvalidInput(f'{where}: its "object" is empty: write which object of the image it is for')
    _check(values, header.values, where)
    return Row(where, file, values, name)


def _check(values: tuple[float, ...], names: tuple[str, ...], where: str) -> None:
    """InvalidInput for numbers that are no point or box; the upper limit is the image's, which is not known here."""
    for name, value in zip(names, values, strict=True):
        if value < 0:
            raise InvalidInput(f"{where}: its {name} {value:g} lies outside the image: coordinates begin with 0")
    if names == POINTS and values[2] not in (0, 1):
        raise InvalidInput(f"{where}: its label {values[2]:g} is neither 1 (object) nor 0 (background)")
    if names == BOXES and not (values[0] < values[2] and values[1] < values[3]):
        raise InvalidInput(f"{where}: its box has no area: x0 must be less than x1, and y0 less than y1")


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
        if "_" not in text and -LARGEST < value < LARGEST:
            return value
    except ValueError:
        pass
    raise InvalidInput(f"{where}: its {name} {text.strip()[:40]!r} is no number: write it like 12 or 12.5")


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from file
    except UnicodeDecodeError:
        raise InvalidInput(f'{path} is not UTF-8: save it as "CSV UTF-8"') from None
    except OSError as error:
        raise fault_of_file(error, path) from None
