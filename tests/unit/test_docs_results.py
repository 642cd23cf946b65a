"""The tables and plots of results: what each figure needs beside it, and how it is shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from triton_sam.bench.figures import Figure

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import docs_faults  # noqa: E402
import docs_figures  # noqa: E402
import docs_plots  # noqa: E402
import docs_results  # noqa: E402

sys.path.remove(str(ROOT / "scripts"))
#: It has commit, date and machine for each part; its command is `make test-all PART=...`.
_RECORD = "test_record.json"
FILES = [path for path in sorted((ROOT / "docs" / "data").rglob("*.json")) if path.name != _RECORD]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures_tell_where_they_are_from(path: Path) -> None:
    document = json.loads(path.read_text())
    for key in docs_figures.HEAD:
        assert document[key], f"{path.name} has no {key}"
    assert document["machine"]["cpu"]
    assert document["figures"]


def test_every_file_is_shown() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    # Those of faults: the twins of a line on fewer cores, or of another door, need no line of their own.
    hidden = [path.stem for path in FILES if "faults" not in path.parts and f"data/{path.name}" not in pages]
    assert set(hidden) <= {"exports", "tuning"}, "those have parts of their own in other pages"


@pytest.mark.parametrize(
    ("figure", "shown", "bar"),
    [
        (Figure("a", 1320.7, "ms"), "1.32 s", ""),
        (Figure("a", 32.87, "ms", 1500.0), "32.9 ms", "≤ 1.5 s"),
        (Figure("a", 9252.0, "clicks/s", least=2500.0), "9,252 clicks/s", "≥ 2,500 clicks/s"),
        (Figure("a", 0.986, "", least=0.98), "0.986", "≥ 0.98"),
        (Figure("a", 0.0, "", 0.0), "0", "≤ 0"),
    ],
)
def test_a_figure_as_people_say_it(figure: Figure, shown: str, bar: str) -> None:
    assert docs_figures.shown(figure) == shown
    assert docs_figures.shown(figure, bar=True) == bar


def test_a_figure_that_is_missing_is_told_with_those_that_are_there() -> None:
    with pytest.raises(ValueError, match=r"docs/data/server.json has no figure 'nonsense', only .*start until ready"):
        docs_figures.find("server", "nonsense")


@pytest.mark.parametrize(
    ("bar", "most"),
    [
        ("<= 2", 2.0),
        ("<= 5 + 3.5 of start", 8.5),
        ("<= 10 + load = 3.5", 13.5),
        ("> 0.999", None),
        ("20 of 20", None),
        ("", None),
    ],
)
def test_the_number_of_a_bar(bar: str, most: float | None) -> None:
    assert docs_faults.most(bar) == most


def test_a_bar_that_is_missed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"what": "back, s (worst)", "value": 8.6, "bar": "<= 5 + 3.5 of start"}]
    made = {"command": "make test-all PART=faults", "figures": rows}
    monkeypatch.setattr(docs_faults, "document", lambda _: made)
    fault = docs_faults.Fault("kill", "503", "kill-idle", (("back after {} s", "back, s (worst)"),))
    monkeypatch.setattr(docs_faults, "FAULTS", (fault,))
    assert "| back after 8.6 s **(missed)** | back after ≤ 8.5 s |" in docs_faults.faults_table()
    rows[0]["value"] = 8.5
    assert "missed" not in docs_faults.faults_table()


@pytest.mark.parametrize("groups", [docs_plots.CPU, docs_plots.GPU])
def test_a_plot_is_a_picture_with_a_bar_for_each_figure(groups: tuple[docs_plots.Group, ...]) -> None:
    text = docs_plots.plot(groups, "a title & more")
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    width, height = map(float, root.get("viewBox", "").split()[2:])
    bars = [rect for rect in root.iter(f"{space}rect") if rect.get("class") != "page"]
    assert len(bars) == sum(len(group.bars) for group in groups)
    for rect in bars:
        right = float(rect.get("x", "0")) + float(rect.get("width", "0"))
        assert right <= width - docs_plots._MARGIN, "its value stands beside it"
        assert float(rect.get("y", "0")) + docs_plots._BAR <= height
    assert "prefers-color-scheme:dark" in text
    assert root.get("aria-label") == "a title & more"


def test_the_readme_has_figures_of_both_kinds_of_machine() -> None:
    lines = docs_results.readme_table().splitlines()[2:]
    assert len(lines) == len(docs_results.README_ROWS)
    for column in (2, 3):
        assert sum(bool(line.split("|")[column].strip()) for line in lines) >= 5
