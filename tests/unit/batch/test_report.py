"""The report: what it says, that it loads and runs nothing, and that it can be repeated."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.batch.made_results import FACTS, HOSTILE, disk, record_of, result_of
from triton_sam.batch.outputs.charts import doubling_bars, histogram, score_bars
from triton_sam.batch.outputs.facts import FailureGroup, JobFacts
from triton_sam.batch.outputs.merge import write_outputs
from triton_sam.batch.outputs.statistics import SAMPLES, Statistics
from triton_sam.batch.records import Item, ItemResult

VOID = {"meta", "img"}


class Page(HTMLParser):
    """Reads a page as a browser does, and notes what it holds."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open, "all is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def values(self, name: str) -> list[str | None]:
        return [value for key, value in self.attributes if key == name]


def results(count: int, name: str = "") -> list[ItemResult]:
    return [
        result_of([record_of(disk(40, 30, 20, 15, 3 + index % 9), 0.5 + index % 10 / 20)], 40, 30, index, name)
        for index in range(count)
    ]


def report(folder: Path, made: list[ItemResult], facts: JobFacts = FACTS, **given: object) -> Page:
    write_outputs(folder, ["report"], iter(made), facts, **given)  # type: ignore[arg-type]
    return Page((folder / "report.html").read_text("utf-8"))


def test_it_tells_what_ran_and_how(tmp_path: Path) -> None:
    facts = replace(
        FACTS,
        done=1_100,
        failed=4,
        seconds=3_900,
        failures=[FailureGroup("it is no image", 3, ["a.png", "b.png"]), FailureGroup("it is too large", 1)],
        definition={
            "model": "sam2",
            "inputs": ["/data/cells"],
            "everything": {"points_per_side": 16, "region": None},
            "outputs": {"coco": {}},
        },
    )
    (tmp_path / "labels").mkdir()

    page = report(tmp_path, results(30), facts)

    for words in (
        f"Batch job {tmp_path.name}",
        "4 of 1,104 images failed",
        "began 2026-03-01 22:15+00:00",
        "1 h 5 min",
        "it is no image",
        "and 1 more",
        "points per side",
        "/data/cells",
        "sam2:tiny (30 images)",
        "triton-sam 0.1.0",
    ):
        assert words in page.text
    assert "region" not in page.text
    assert page.values("href") == ["labels/"]
    assert {"svg", "details", "img"} <= page.tags


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(FACTS, done=3), "All images are done"),
        (replace(FACTS, done=1, failed=1), "1 of 2 images failed"),
        (replace(FACTS, done=1, waiting=1), "1 of 2 images are waiting: the same command goes on"),
        (replace(FACTS, done=0, seconds=0), "There were no images"),
    ],
)
def test_its_first_line_tells_how_the_job_stands(tmp_path: Path, facts: JobFacts, words: str) -> None:
    assert words in report(tmp_path, [], facts).text


def test_the_files_of_the_same_run_are_linked(tmp_path: Path) -> None:
    write_outputs(tmp_path, ["coco", "geojson", "report"], iter(results(1)), FACTS)

    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert page.values("href") == ["annotations.json", "masks.geojson"]


def test_it_runs_and_loads_nothing(tmp_path: Path) -> None:
    page = report(tmp_path, results(3))

    assert not page.tags & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert all(str(source).startswith("data:image/jpeg;base64,") for source in page.values("src"))
    assert "url(" not in (tmp_path / "report.html").read_text("utf-8")
    assert not [name for name, _ in page.attributes if name.startswith("on")]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "job <b>&"
    folder.mkdir()
    facts = replace(FACTS, failures=[FailureGroup(name, 1, [name])], definition={name: {name: [name]}})

    page = report(folder, results(2, name), facts)

    assert "script" not in page.tags
    assert "b" not in page.tags
    seen = (
        name.replace("\udcff", "?").replace("\n", "␊").replace("\t", "␉").replace("\0", "␀").replace("\u202e", "\ufffd")
    )
    assert page.text.count(seen) >= 4


def test_samples_show_their_picture(tmp_path: Path) -> None:
    def picture(item: Item) -> Image.Image:
        if item.index == 1:
            raise OSError("it is gone")
        return Image.new("RGB", (40, 30), (0, 0, 90))

    page = report(tmp_path, results(2), picture=picture)

    pixels = []
    for source in page.values("src"):
        with Image.open(io.BytesIO(base64.b64decode(str(source).partition(",")[2]))) as thumbnail:
            assert thumbnail.size == (40, 30)
            pixels.append(np.asarray(thumbnail)[0, 0].astype(int))
    assert abs(pixels[0] - (0, 0, 90)).max() < 12
    assert np.ptp(pixels[1]) < 30, "grey"
    assert page.text.count("the image could not be read") == 1


def test_thumbnails_are_small(tmp_path: Path) -> None:
    wide = result_of([record_of(np.ones((10, 3000), np.bool_))], 3000, 10)

    page = report(tmp_path, [wide], picture=lambda _: Image.new("RGB", (3000, 10)))

    assert page.values("width")[-1] == "256" or "256" in page.values("width")
    assert "1" in page.values("height")


def test_a_report_can_be_repeated(tmp_path: Path) -> None:
    report(tmp_path, results(200))
    first = (tmp_path / "report.html").read_bytes()

    report(tmp_path, results(200))

    assert (tmp_path / "report.html").read_bytes() == first


def test_samples_come_from_the_whole_job() -> None:
    statistics = Statistics()
    for result in results(2_000):
        statistics.add(result)

    chosen = [result.item.index for result in statistics.samples]

    assert len(set(chosen)) == SAMPLES
    assert chosen == sorted(chosen)
    assert min(chosen) < 500
    assert max(chosen) > 1_500


def test_statistics_count_what_is_in_the_results() -> None:
    mask = record_of(disk(40, 30, 20, 15, 4), 0.97)
    scores = (-0.1, 0.0, 0.049, 0.5, 0.97, 1.0, 1.3, float("nan"))
    statistics = Statistics()
    statistics.add(result_of([replace(mask, score=score) for score in scores], 40, 30))
    statistics.add(replace(result_of([], 40, 30, 1), seconds=0.0, model=""))

    assert sum(statistics.scores) == 7
    assert [statistics.scores[index] for index in (0, 10, 19)] == [3, 1, 3]
    assert statistics.areas[mask.area.bit_length()] == 8
    assert (statistics.masks_per_image[0], statistics.masks_per_image[4]) == (1, 1)
    assert (statistics.seconds.count, statistics.seconds.mean, sum(statistics.times)) == (1, 0.25, 1)
    assert (statistics.images, statistics.masks.mean, statistics.masks.greatest) == (2, 4, 8)


@pytest.mark.parametrize("counts", [[0] * 20, [0, 1, *[0] * 18], [1_000_000, *[1] * 19]])
def test_histograms_are_whole_svg(counts: list[int]) -> None:
    for bars in (
        score_bars(counts),
        doubling_bars("areas <px>", "px", counts),
        doubling_bars("", "s", counts, 1 / 1024),
    ):
        drawn = ET.fromstring(histogram(bars))

        rects = [element for element in drawn if element.tag == "rect"]
        assert len(rects) == len([count for count in counts if count])
        for rect in rects:
            x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            assert x >= 0
            assert y >= 20
            assert x + width <= 360
            assert y + height <= 190
            assert height >= 1.9


def test_bins_are_named_by_what_is_in_them() -> None:
    bars = doubling_bars("Masks by area", "pixels", [2, 1, 0, 5, 0, 0], unit=" px")

    assert list(bars.names) == ["0 px", "1 px", "2 to 3 px", "4 to 7 px"]
    assert list(bars.edges) == ["0", "1", "2", "4", "8"]
    assert list(doubling_bars("", "s", [0] * 9 + [3], 1 / 1024, " s").names) == ["0.25 to 0.5 s"]
