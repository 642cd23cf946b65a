"""Points and boxes from CSV files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.batch.prompts.csv_prompts import CsvPrompts
from triton_sam.batch.prompts.prompt_files import open_prompts
from triton_sam.batch.records import ItemPrompt, PromptImage
from triton_sam.errors import InvalidInput


def read(folder: Path, text: str | bytes) -> CsvPrompts:
    path = folder / "prompts.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return CsvPrompts(path)


def prompts(folder: Path, text: str | bytes) -> list[tuple[str, ItemPrompt]]:
    return list(read(folder, text).prompts())


def points(*found: tuple[float, float], labels: tuple[int, ...] | None = None) -> ItemPrompt:
    return ItemPrompt(points=found, labels=labels or (1,) * len(found))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_boxes(tmp_path: Path, delimiter: str, mark: bytes, end: str) -> None:
    lines = ("score,file,x0,Y0, x1 ,y1,note", '0.5,"a b.png",1,2,3.5,4,"two\nlines"', "", "1,d\\c.png,0,0,1e2,7,")
    text = mark + end.join(lines).replace(",", delimiter).encode()
    assert prompts(tmp_path, text) == [
        ("a b.png", ItemPrompt(box=(1, 2, 3.5, 4))),
        ("d/c.png", ItemPrompt(box=(0, 0, 100, 7))),
    ]


def test_images_come_once_in_their_order(tmp_path: Path) -> None:
    found = read(tmp_path, "file,x,y,label\nb.png,1,2,1\n./a.png,1,2,1\nb.png,3,4,1\n")
    assert list(found.images()) == [PromptImage("b.png", "b.png"), PromptImage("a.png", "a.png")]
    assert found.categories == ()
    assert isinstance(open_prompts(None, tmp_path / "prompts.csv"), CsvPrompts)


def test_rows_of_an_object_belong_together_wherever_they_stand(tmp_path: Path) -> None:
    text = "file,x,y,label,object\na,1,2,1,k\nb,5,6,1,k\na,3,4,1,m\na,7,8,0,k\n"
    assert prompts(tmp_path, text) == [
        ("a", points((1, 2), (7, 8), labels=(1, 0))),
        ("b", points((5, 6))),
        ("a", points((3, 4))),
    ]


def test_without_objects_positive_points_are_objects_and_one_with_negative_ones_is_one(tmp_path: Path) -> None:
    text = "file,x,y,label\na,1,2,1\nb,5,6,0\na,3,4,1.0\nb,7,8,1\nb,9,10,0\n"
    assert prompts(tmp_path, text) == [
        ("a", points((1, 2))),
        ("a", points((3, 4))),
        ("b", points((5, 6), (7, 8), (9, 10), labels=(0, 1, 0))),
    ]


FORMS = r"the header must be file,x,y,label or file,x0,y0,x1,y1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: its first line must be file,x,y,label or"),
        ("file,x,y,label\n", "has a header and no rows"),
        ("a.png,1,2,3,4\n", f'line 1: .* has no column "file" and no column "x0".*; {FORMS}'),
        ("file,x,y\n", f'line 1: .*has no column "label"; {FORMS}'),
        ("name;x0;y0;x1;y1\n", f'line 1: .*has no column "file"; {FORMS}'),
        ("file,x,y,x,label\n", f'line 1: it has the column "x" twice; {FORMS}'),
        ("file,x,y,label,x0,y0,x1,y1\n", f"line 1: it has the columns of points and of boxes; {FORMS}"),
        ("hello\n", f"line 1: 'hello' is no header; {FORMS}"),
        ("file,x,y,label\na,1,2,1\na,one,2,1\n", "line 3: its x 'one' is no number: write it like 12 or 12.5"),
        ("file,x,y,label\na,nan,2,1\n", "line 2: its x 'nan' is no number"),
        ("file,x,y,label\na,1_0,2,1\n", "line 2: its x '1_0' is no number"),
        ("file;x;y;label\na;1,5;2;1\n", "line 2: its x '1,5' is no number"),
        ("file,x,y,label\na,1,-2,1\n", "line 2: its y -2 lies outside the image: coordinates begin with 0"),
        ("file,x,y,label\na,1,2,3\n", r"line 2: its label 3 is neither 1 \(object\) nor 0 \(background\)"),
        ("file,x,y,label\na,1,2\n", r"line 2 has 3 cell\(s\) and the header 4"),
        ("file,x,y,label\na,b.png,1,2,1\n", r'line 2 has 5 cell\(s\) and the header 4: put "quotation marks" around'),
        ("file,x,y,label\n ,1,2,1\n", 'line 2: its "file" is empty'),
        ("file,x,y,label,object\na,1,2,1,\n", 'line 2: its "object" is empty'),
        ("file,x,y,label\na,1,2,0\n", "prompts.csv: a has no point with label 1"),
        ("file,x,y,label,object\na,1,2,1,k\na,1,2,0,m\n", "object m of a has no point with label 1"),
        ("file,x,y,label\na,1,2,1\na,1,2,1\na,5,6,0\n", 'a has 2 points with label 1 and some with 0: .*"object"'),
        ("file,x0,y0,x1,y1\na,5,6,5,9\n", "line 2: its box has no area: x0 must be less than x1"),
        ("file,x0,y0,x1,y1,object\na,1,1,5,9,k\na,1,1,5,9,k\n", "line 3: the object k of a has a second box"),
        ('file,x,y,label\n"' + "a" * 140_000, "line 2: it cannot be read as CSV"),
        (b"file,x,y,label\n\xe4,1,2,1\n", "is not UTF-8: save it as"),
    ],
)
def test_what_is_wrong(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        prompts(tmp_path, text)


def test_images_are_checked_as_prompts_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="line 2: its y"):
        list(read(tmp_path, "file,x,y,label\na,1,z,1\n").images())


# Not the other line breaks of str.splitlines, which are no line breaks of a file; a stripped cell is another name.
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp"), exclude_characters="\\"), min_size=1)
NUMBERS = st.floats(0, 1e8) | st.integers(0, 10_000)
ROWS = st.lists(st.tuples(NAMES.filter(lambda name: not name.startswith("./")), NUMBERS, NUMBERS), min_size=1)


@given(rows=ROWS, delimiter=st.sampled_from(",;\t"), quoting=st.sampled_from((csv.QUOTE_ALL, csv.QUOTE_MINIMAL)))
def test_what_was_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, float, float]], delimiter: str, quoting: int
) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, quoting=quoting)
    writer.writerows([["file", "x", "y", "label"], *[(*row, 1) for row in rows]])
    found = read(tmp_path_factory.mktemp("csv"), buffer.getvalue())
    names = list(dict.fromkeys(name for name, *_ in rows))
    assert [image.name for image in found.images()] == names
    expected = [(file, points((x, y))) for name in names for file, x, y in rows if file == name]
    assert list(found.prompts()) == expected
