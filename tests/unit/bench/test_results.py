from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.unit.bench.helpers import result
from triton_sam.bench import machine, plots
from triton_sam.bench.figures import Figure
from triton_sam.bench.report import markdown
from triton_sam.bench.results import command_line, read, write
from triton_sam.errors import InvalidInput, SetupError

FIGURE = Figure("click", 1.5, "ms", 2.0, "by hand", better="lower")


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    before = result(FIGURE, Figure("rate", 3.0, "/s", least=4.0, better="higher"))
    write(before, tmp_path / "result.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json"]
    after = read(tmp_path)
    assert after.figures == before.figures
    assert after.series == before.series
    assert (after.name, after.about, after.notes, after.date) == (before.name, before.about, before.notes, before.date)
    assert (after.commit, after.command, after.reached) == (before.commit, before.command, False)


def test_the_folder_has_the_raw_numbers_the_machine_and_a_table(tmp_path: Path) -> None:
    write(result(FIGURE), tmp_path / "new" / "folder")
    document = json.loads((tmp_path / "new" / "folder" / "result.json").read_text())
    assert document["machine"]["cpu"] == "Abacus, 2 cores"
    assert document["series"][0]["rounds"] == [[1.0, 2.0], [3.0]]
    assert document["figures"][0]["reached"] is True
    page = (tmp_path / "new" / "folder" / "result.md").read_text()
    assert markdown([FIGURE], {"cpu": "Abacus, 2 cores", "python": "3.11.7"}) in page
    for words in ("sam2:tiny", "commit abc1234", "something was left out", "(click.png)"):
        assert words in page


def test_a_file_has_a_line_for_each_thing(tmp_path: Path) -> None:
    write(result(*[FIGURE] * 3), tmp_path / "result.json")
    assert len((tmp_path / "result.json").read_text().splitlines()) < 30


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"figures": [{"name": "x"}], "machine": {}}'])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InvalidInput, match="is not a result of `triton-sam bench`"):
        read(tmp_path)


def test_a_result_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read the result"):
        read(tmp_path / "nothing.json")


@pytest.mark.part("bench")
def test_plots_are_pictures(tmp_path: Path) -> None:
    from PIL import Image

    write(result(FIGURE), tmp_path)
    with Image.open(tmp_path / "click.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 2 * picture.height
        assert len(picture.convert("RGB").getcolors(2**24) or []) > 100
    (tmp_path / "click.png").unlink()
    assert plots.draw(read(tmp_path).charts, tmp_path) == [tmp_path / "click.png"]


def test_without_matplotlib_the_rest_is_written_and_a_message_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = write(result(FIGURE), tmp_path)
    assert said is not None
    assert "[bench]" in said
    assert f"triton-sam bench plot {tmp_path}" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "result.md"]
    with pytest.raises(SetupError, match="matplotlib is not installed"):
        plots.draw(read(tmp_path).charts, tmp_path)


def test_the_gpu_and_its_driver_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"name,driver_version": "NVIDIA H200, 550.54", "memory.used": "1024"}
    monkeypatch.setattr(machine, "_query_gpu", answers.get)
    assert machine.machine()["gpu"] == "NVIDIA H200, driver 550.54"
    assert machine.gpu_bytes() == 2**30


def test_a_machine_without_a_gpu_has_no_entry_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_query_gpu", lambda fields: None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    about = machine.machine()
    assert "gpu" not in about
    assert {"cpu", "python", "triton-sam"} <= set(about)
    assert machine.gpu_bytes() is None


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("docs/data/click.json", "docs/data/click.json"),
        ("/home/anna/x.pt", "x.pt"),
        ("../shared/x.pt", "x.pt"),
        ("--checkpoint=/home/anna/x.pt", "--checkpoint=x.pt"),
        ("--checkpoint=/home/anna/a=b.pt", "--checkpoint=a=b.pt"),
        ("--output=../x", "--output=x"),
        ("--many", "--many"),
        ("--image=~/x.png", "--image=x.png"),
        ("--rounds=15", "--rounds=15"),
    ],
)
def test_the_command_names_no_path_outside_of_the_folder(word: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/triton-sam", "bench", word])
    assert command_line() == f"triton-sam bench {told}"
