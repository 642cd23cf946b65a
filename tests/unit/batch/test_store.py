"""The state of a job: what is in it, and which jobs may go on in it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given as examples
from hypothesis import strategies

from tests.unit.batch.state_helpers import DEFINITION, Prompts, check_complete, given, opened, result_of, run
from triton_sam.batch.records import ItemPrompt, SegmentOptions, Source
from triton_sam.batch.state.database import STATE_FILE
from triton_sam.batch.state.definition import JobDefinition
from triton_sam.batch.state.filling import JobInput, stems
from triton_sam.batch.state.opening import forget_missing, known_definition, open_job, results_of
from triton_sam.batch.state.results import ResultFiles
from triton_sam.batch.state.store import Ended, JobStore
from triton_sam.errors import InvalidInput, JobStopped

NAMES = ["a.png", "sub/b.tif", "c.jpg"]
BOX = ItemPrompt((1.5, 2, 30, 40), annotation_id=7, category_id=3)
POINTS = ItemPrompt(points=((1.5, 2.25), (3, 4)), labels=(1, 0))


def stems_of(store: JobStore) -> list[str]:
    return [work.item.stem for work in store.waiting(1000)]


def test_items(tmp_path: Path) -> None:
    found: list[int] = []
    with opened(tmp_path, replace(given(NAMES, {"sub/b.tif": 3}), on_found=found.append)) as store:
        items = [work.item for work in store.waiting(10)]
        assert [item.index for item in items] == list(range(5))
        assert [item.name for item in items] == ["a.png", "sub/b.tif[0]", "sub/b.tif[1]", "sub/b.tif[2]", "c.jpg"]
        assert [item.page for item in items] == [None, 0, 1, 2, None]
        assert [item.stem for item in items] == ["a", "sub/b[0]", "sub/b[1]", "sub/b[2]", "c"]
        assert items[2].path == Path("/photos/sub/b.tif")
        assert [work.item.index for work in store.waiting(2, after=1)] == [2, 3]
        assert (store.counts().of, store.counts().waiting) == (5, 5)
        assert store.facts().sources == 3
    assert found == [5]
    assert known_definition(tmp_path) == JobDefinition.from_json(DEFINITION.to_json())


def test_stems_are_unique(tmp_path: Path) -> None:
    names = ["a.png", "a.jpg", "a.jpg.png", "A.png", "a.jpg.tif", "../b.png", "/b.tif", "..", ".png"]
    with opened(tmp_path, given(names)) as store:
        stems = stems_of(store)
    assert stems == ["a", "a.jpg", "a.jpg.png", "A.png", "a.jpg.tif", "b", "b.tif", "image", ".png"]


def test_stems_when_all_are_taken(tmp_path: Path) -> None:
    with opened(tmp_path, given(["a.png", "a.jpg.png", "a.jpg"])) as store:
        assert stems_of(store) == ["a", "a.jpg", "a.jpg-2"]


@examples(strategies.text(max_size=12), strategies.none() | strategies.integers(0, 20))
def test_stems_stay_below_the_folder(name: str, page: int | None) -> None:
    whole = name if page is None else f"{name}[{page}]"
    for stem, _ in zip(stems(whole, page), range(4), strict=False):
        assert stem
        assert not stem.startswith("/")
        assert ".." not in stem.split("/")


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    prompts = Prompts({name: 4}, [(name, BOX)])
    with opened(tmp_path, given([name, "b.png"], prompts=prompts)) as store:
        [work] = store.waiting(1)
        assert (work.item.name, work.item.path, work.item.image_id) == (name, Path("/photos") / name, 4)
        assert work.prompts == [BOX]
        store.record([Ended(0, failure=f"{name} is bad")])
        [failure] = store.failures()
        assert (failure.reason, failure.name) == (f"{name} is bad", "caf\\udce9.png")
    with opened(tmp_path, given([name, "b.png"], prompts=prompts)) as store:
        assert store.counts().failed == 1


def test_records(tmp_path: Path) -> None:
    with opened(tmp_path, given([f"{n}.png" for n in range(6)])) as store:
        store.begin_run()
        store.record(
            [Ended(0, 3, 500, 0.5), Ended(4, 2, 100, 0.25), Ended(2, failure="no image"), Ended(3, failure="x" * 9000)]
        )
        assert [work.item.index for work in store.waiting(10)] == [1, 5]
    with opened(tmp_path, given([f"{n}.png" for n in range(6)])) as store:
        # results that are recorded but not there are made again
        assert [work.item.index for work in store.waiting(10)] == [0, 1, 4, 5]
        store.record([Ended(0, 3, 500, 0.5), Ended(4, 2, 100, 0.25)])
        counts = store.counts()
        assert (counts.done, counts.failed, counts.waiting) == (2, 2, 2)
        assert [item.index for item in store.done()] == [0, 4]
        assert [(failure.item.index, len(failure.reason), failure.tries) for failure in store.failures()] == [
            (2, 8, 1),
            (3, 2000, 1),
        ]
        facts = store.facts()
        assert (facts.masks, facts.bytes, facts.seconds, facts.runs) == (5, 600, 0.75, 1)
        assert store.reset_failed() == 2
        assert store.reset_failed() == 0
        assert [work.item.index for work in store.waiting(10)] == [1, 2, 3, 5]
        store.record([Ended(2, failure="again")])
        assert [(failure.reason, failure.tries) for failure in store.failures()] == [("again", 2)]


def test_prompts(tmp_path: Path) -> None:
    images = {"a.png": 10, "elsewhere/b.tif[1]": 20, "elsewhere/c.jpg": None}
    prompts = [("a.png", BOX), ("elsewhere/b.tif[1]", POINTS), ("a.png", replace(BOX, annotation_id=8))]
    with opened(tmp_path, given([*NAMES, "d.png"], {"sub/b.tif": 2}, Prompts(images, prompts))) as store:
        works = {work.item.name: work for work in store.waiting(10)}
        assert works["a.png"].prompts == [BOX, replace(BOX, annotation_id=8)]
        assert works["sub/b.tif[1]"].prompts == [POINTS]
        assert not any(works[name].prompts for name in ("sub/b.tif[0]", "c.jpg", "d.png"))
        assert [works[name].item.image_id for name in works] == [10, None, 20, None, None]
        assert store.categories() == [{"id": 3, "name": "cell"}]


@pytest.mark.parametrize(
    ("images", "names", "told"),
    [
        (
            ["a.png", "x.png", "y.png", "z.png", "q.png"],
            NAMES,
            r"name 4 images that the inputs do not have \(x.png, y.png, z.png, ...\): give the folders",
        ),
        (["a.png", "x.png"], NAMES, r"name 1 image that the inputs do not have \(x.png\)"),
        (["other/1.png"], ["a/1.png", "b/1.png"], r"1 image that could be one of several inputs \(other/1.png\)"),
        (["p/1.png", "q/1.png"], ["a/1.png"], r"2 images that could be one of several inputs \(p/1.png, q/1.png\)"),
        (["sub/b.tif[9]"], NAMES, r"do not have \(sub/b.tif\[9\]\)"),
    ],
)
def test_prompts_without_images(tmp_path: Path, images: list[str], names: list[str], told: str) -> None:
    prompts = Prompts(dict.fromkeys(images, 1), [])
    with pytest.raises(InvalidInput, match=told):
        open_job(tmp_path, DEFINITION, given(names, prompts=prompts))
    assert known_definition(tmp_path) is None  # nothing of it is left
    with opened(tmp_path, given(names)) as store:
        assert store.counts().of == len(names)


def test_prompts_for_images_that_their_file_does_not_list(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has 2 prompts for images that it does not list, as key of q.png:"):
        open_job(tmp_path, DEFINITION, given(NAMES, prompts=Prompts({"a.png": 1}, [("q.png", BOX), ("q.png", BOX)])))
    with pytest.raises(InvalidInput, match="more than 64 bits"):
        open_job(tmp_path, DEFINITION, given(NAMES, prompts=Prompts({"a.png": 2**70}, [])))


def test_an_image_twice_in_a_file_of_prompts(tmp_path: Path) -> None:
    class Twice(Prompts):
        def images(self) -> Iterator:
            return iter([*super().images(), *super().images()])

    with pytest.raises(InvalidInput, match=r"several entries for one image \(a.png\)"):
        open_job(tmp_path, DEFINITION, given(NAMES, prompts=Twice({"a.png": 1}, [])))


def test_no_images_and_images_twice(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no images"):
        open_job(tmp_path, DEFINITION, given([]))
    with pytest.raises(InvalidInput, match=r"same name a.png"):
        open_job(tmp_path, DEFINITION, given(["a.png", "a.png"]))


def test_a_file_whose_pages_cannot_be_counted_is_one_image(tmp_path: Path) -> None:
    errors = {"a.png": InvalidInput("no"), "sub/b.tif": FileNotFoundError(2, "gone"), "c.jpg": OSError(5, "broken")}

    def pages(source: Source) -> list[int | None]:
        raise errors[source.name]

    with opened(tmp_path, replace(given(NAMES[:2]), pages=pages)) as store:
        assert [work.item.name for work in store.waiting(10)] == NAMES[:2]
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(JobStopped, match=r"/photos/c.jpg cannot be read \(broken\)"):
        open_job(other, DEFINITION, replace(given(["c.jpg"]), pages=pages))


def test_set_up_that_is_interrupted_starts_afresh(tmp_path: Path) -> None:
    def interrupt(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_job(tmp_path, DEFINITION, replace(given(NAMES), on_found=interrupt))
    with opened(tmp_path, given(["x.png"])) as store:
        assert store.counts().of == 1


def test_another_definition(tmp_path: Path) -> None:
    with opened(tmp_path, given(NAMES)):
        pass
    other = replace(DEFINITION, options=SegmentOptions(everything={"points_per_side": 16}))
    with pytest.raises(InvalidInput, match="points_per_side was 32 and is 16"):
        open_job(tmp_path, other, given(NAMES))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a.png", "c.jpg"], r"\(sub/b.tif was removed; c.jpg was changed\)"),  # sizes differ by place
        ([*NAMES, "d", "e", "f", "g"], r"\(d, e, f and 1 more were added\): restore them, or give another --out"),
        (["z.png", *NAMES[1:]], r"\(z.png was added; a.png was removed\)"),
    ],
)
def test_other_sources(tmp_path: Path, names: list[str], told: str) -> None:
    with opened(tmp_path, given(NAMES)):
        pass
    with pytest.raises(InvalidInput, match=told):
        open_job(tmp_path, DEFINITION, given(names))
    with opened(tmp_path, given(NAMES)) as store:
        assert store.counts().of == 3


def test_the_same_sources_elsewhere(tmp_path: Path) -> None:
    with opened(tmp_path, given(NAMES)):
        pass
    passes = 0
    elsewhere = given(NAMES, root="/mnt")

    def sources() -> list[Source]:
        nonlocal passes
        passes += 1
        return list(elsewhere.sources())

    for expected in (2, 3):  # to write the paths, once
        with opened(tmp_path, JobInput(sources, elsewhere.pages)) as store:
            assert [work.item.path for work in store.waiting(10)] == [Path("/mnt") / name for name in NAMES]
        assert passes == expected
    with opened(tmp_path, replace(elsewhere, sources=lambda: reversed(list(elsewhere.sources())))) as store:
        assert [work.item.name for work in store.waiting(10)] == NAMES


def test_missing_and_damaged_results(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"{n}.png" for n in range(1005)]
    files = ResultFiles(tmp_path)
    with opened(tmp_path, given(names)) as store:
        run(store)
        check_complete(store)
        assert [result.item.index for result in results_of(store, files)] == [item.index for item in store.done()]
        for index in (0, 999, 1000):
            files.path(index).unlink()
        files.path(5).write_text("{")
    with caplog.at_level(logging.WARNING), opened(tmp_path, given(names)) as store:
        assert [work.item.index for work in store.waiting(9)] == [0, 999, 1000]
        assert "3 recorded results are not in" in caplog.text
        run(store)
        with pytest.raises(JobStopped, match=r"5.png cannot be read \(.*damaged\): the same command makes it again"):
            list(results_of(store, files))
        assert run(store).now == 1
        assert list(results_of(store, files)) == [result_of(item) for item in store.done()]
        assert forget_missing(store, files) == 0
        check_complete(store)


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at" * 90, None])
def test_another_programs_file(tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        with sqlite3.connect(tmp_path / STATE_FILE) as other:
            other.execute("CREATE TABLE items (x)")
        other.close()
    else:
        (tmp_path / STATE_FILE).write_bytes(content)
    with pytest.raises(InvalidInput, match=r"job.sqlite3 is not the state of a job: give another --out"):
        open_job(tmp_path, DEFINITION, given(NAMES))


def test_a_newer_version(tmp_path: Path) -> None:
    with opened(tmp_path, given(NAMES)):
        pass
    connection = sqlite3.connect(tmp_path / STATE_FILE)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(InvalidInput, match="newer version of triton-sam"):
        open_job(tmp_path, DEFINITION, given(NAMES))


def test_damaged_state(tmp_path: Path) -> None:
    with opened(tmp_path, given([f"{n}.png" for n in range(500)])):
        pass
    file = tmp_path / STATE_FILE
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"is damaged: begin again with another --out"):
        open_job(tmp_path, DEFINITION, given([f"{n}.png" for n in range(500)]))


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with pytest.raises(JobStopped, match="cannot be written"):
        open_job(folder, DEFINITION, given(NAMES))
    folder.mkdir()
    with opened(folder, given(NAMES)) as store:
        folder.rename(tmp_path / "moved")
        with pytest.raises(JobStopped, match=r"job.sqlite3 is gone"):
            store.record([Ended(0)])
