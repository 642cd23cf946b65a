"""The script that measures a GPU machine's tables in one go: order, limits, and what it writes; no GPU is needed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_tables
from benchmarks.gpu_tables import main
from benchmarks.gpu_tables_parts import PARTS, Lines, Part
from triton_sam.bench.figures import Figure
from triton_sam.bench.results import read

ROOT = Path(__file__).resolve().parents[3]
_MS = {"p50": 2.0, "p95": 3.0, "p99": 4.0}
_RATE = {"rate": 100.0, "p50": 1.0, "p99": 2.0}
_START: dict[str, Any] = {"ready_s": 8.1, "full_speed_s": 12.5}
_STEPS = {"client": 6.0, "encode": 3.0, "image": 1.5, "total": 4.6}
_CLICK_STEPS = {"client": 1.3, "decode": 0.4, "total": 0.5}
_CROWD = {"clicks_1": _RATE, "clicks_8": _RATE, "clicks_32": _RATE, "clicks_64": _RATE, "images_16": _RATE}
#: Part -> lines as its benchmark prints them.
LINES: dict[str, list[dict[str, Any]]] = {
    "clicks": [
        line
        for processes in (0, 6)
        for line in (
            {"processes": processes, **_START, "picture": "a photograph"},
            {"processes": processes, "differing_pixels": 0},
            {"processes": processes, "image_ms": _MS, "click_ms": _MS, "image_and_10_ms": _MS},
            {"processes": processes, "steps_ms": {"click": _CLICK_STEPS, "image": _STEPS}},
            {"processes": processes, **_CROWD},
        )
    ],
    "service": [
        {"service_processes": 4, **_START},
        *({"service_processes": 4, "form": form, "1": _RATE, "16": _RATE, "64": _RATE} for form in ("rle", "bits")),
    ],
    "kills": [
        {**_START},
        {"back_s": 3.9, "timeline_of_the_kill": []},
        {
            "devices": 1,
            "kills": 2,
            "outcomes": {"right": 90, "clear error": 3},
            "back_s": {"median": 3.9, "worst": 4.4},
        },
    ],
    "everything": [
        {"folder": "everything", "weights": "given", "processes": 6, **_START},
        {"picture": "a photograph", "points": 1024, "masks": 10, "answer_bytes": 9},
        {"upload_and_encode": {"least": 5.0, "median": 5.5, "most": 6.0}},
        {"everything_with_upload": {"least": 47.0, "median": 47.6, "most": 48.0}},
        {"everything_of_an_encoded_image": {"least": 42.0, "median": 42.8, "most": 43.0}, "steps": {}},
        {"clients": 16, "single_clicks_a_second": 1965, "as_long_as_everything": 12.2, "all_points": 521},
    ],
    "video": [
        {"folder": "video", "model": "sam2.1:base_plus", **_START},
        *({"objects": count, "frame_ms": 4.8, "bar_ms": 9.0, "met": True, "gap_ms": _MS} for count in (1, 5, 16)),
        {"videos": 8, "frames_a_second": 202.0, "bar": 180.0, "met": True},
        {"clicks_beside": "nothing", "click_ms": _MS},
        *({"clicks_beside": f"1 videos with {many} objects", "click_ms": _MS} for many in (1, 5)),
        {"clicks_beside": "8 videos with 1 objects", "click_ms": _MS},
        *({"transformers": "eager bfloat16", "objects": count, "frame_ms": 25.7} for count in (1, 5, 16)),
    ],
    "words": [
        {"part": "equal", "seconds": 60.0, "left": 100},
        *({"bare": what, "ms": _MS} for what in ("image", "new image, new text", "new text", "known text")),
        *({"bare": what, "ms": _MS} for what in ("four known texts", "two examples", "click")),
        *({"bare": f"transformers: {what}", "ms": _MS} for what in ("all", "vision", "text and detector")),
        *(
            {"served": what, "masks": way, "ms": _MS, "bar_ms": 14.0, "met": True, "steps_ms": {"total": 1.9}}
            for way in ("over HTTP", "in memory")
            for what in ("new image, new text", "new text", "known text")
        ),
        {"served": "click", "server": "with words", "ms": _MS},
    ],
}


@pytest.mark.parametrize("name", list(LINES))
def test_lines_become_the_figures_that_the_page_shows(name: str) -> None:
    part = PARTS[name]
    found = [figure.name for figure in part.collect(LINES[name])]
    assert len(found) == len(set(found))
    shown = {row["name"] for row in json.loads((ROOT / "docs" / "data" / part.file).read_text())["figures"]}
    assert rows_of(part.file.removesuffix(".json")) <= set(found) & shown


def rows_of(file: str) -> set[str]:
    """The figures of a file that the tables, the README and the plots take."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import docs_plots
        import docs_results
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    rows = [*docs_results.CPU_ROWS, *docs_results.GPU_ROWS]
    places = {(row.file, name) for row in rows for name in (row.figure, *(other for _, other in row.against))}
    places |= {place for _, *pair in docs_results.README_ROWS for place in pair if place is not None}
    places |= {(bar.file, bar.figure) for group in (*docs_plots.CPU, *docs_plots.GPU) for bar in group.bars}
    return {name for where, name in places if where == file}


def test_every_file_of_a_gpu_is_measured() -> None:
    files = {path.name for path in (ROOT / "docs" / "data").glob("gpu*.json")}
    assert files == {part.file for part in PARTS.values()}
    assert set(LINES) == {name for name, part in PARTS.items() if not part.writes_file}


def test_a_start_that_stays_uncompiled_is_no_result() -> None:
    slow = [line | {"full_speed_s": None} if "full_speed_s" in line else line for line in LINES["clicks"]]
    with pytest.raises(ValueError, match="did not reach full speed"):
        list(PARTS["clicks"].collect(slow))


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ({"bare": "transformers: all"}, "transformers, new image, new text"),
        ({"served": "known text", "masks": "in memory"}, "served: known text, masks in memory"),
    ],
)
def test_a_part_of_words_that_failed_is_no_result(lost: dict[str, str], said: str) -> None:
    kept = [line for line in LINES["words"] if not lost.items() <= line.items()]
    with pytest.raises(ValueError, match=f"not measured: {said}"):
        list(PARTS["words"].collect(kept))


# -- running them: each part is replaced by a few lines of Python --------------------------------------------------


def a_rate(lines: Lines) -> Iterator[Figure]:
    yield Figure("rate", lines[-1]["rate"], "/s", least=2.0)


def printing(file: str, *statements: str, **fields: Any) -> Part:
    return Part("a try", file, ("-c", "\n".join(statements)), a_rate, {"model": "none"}, **fields)


SAYS_THREE = 'print("no JSON"); print(\'{"rate": 3.0}\')'


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.delenv("TRITON", raising=False)
    return [str(tmp_path / "folder"), "--output", str(tmp_path / "data"), "--commit", "abc1234"]


def use(monkeypatch: pytest.MonkeyPatch, **parts: Part) -> None:
    monkeypatch.setattr(gpu_tables, "PARTS", parts)


def test_a_file_begins_with_where_its_figures_are_from(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, crowd=printing("gpu_crowd.json", SAYS_THREE))
    assert main(given) == 0
    document = json.loads((tmp_path / "data" / "gpu_crowd.json").read_text())
    assert list(document)[:6] == ["name", "commit", "date", "machine", "command", "about"]
    assert (document["name"], document["commit"], document["about"]) == ("gpu-crowd", "abc1234", {"model": "none"})
    assert document["command"] == "python -m benchmarks.gpu_tables FOLDER crowd"
    assert document["machine"]["cpu"]
    (figure,) = read(tmp_path / "data" / "gpu_crowd.json").figures
    assert (figure.value, figure.least, figure.reached) == (3.0, 2.0, True)


def test_parts_run_in_their_order_and_a_failure_ends_no_other(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    before = '{"figures": []}'
    for name in ("silent", "broken"):
        (tmp_path / "data" / f"{name}.json").write_text(before)
    use(
        monkeypatch,
        silent=printing("silent.json", "pass"),
        broken=printing("broken.json", SAYS_THREE, "raise SystemExit('it went wrong')"),
        last=printing("last.json", SAYS_THREE),
        other=printing("other.json", SAYS_THREE),
    )
    assert main([given[0], "last", "broken", "silent", *given[1:]]) == 1
    told = capsys.readouterr().out
    assert told.index("silent failed") < told.index("broken failed") < told.index("rate: 3 /s")
    assert "it went wrong" in told
    assert "left as they were: silent, broken" in told
    assert [(tmp_path / "data" / f"{name}.json").read_text() for name in ("silent", "broken")] == [before] * 2
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["broken.json", "last.json", "silent.json"]


def test_a_part_ends_at_its_limit_with_all_that_it_has_started(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeper = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    tell = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); child.wait()"
    use(monkeypatch, endless=printing("endless.json", sleeper, tell, seconds=3.0))
    begun = time.monotonic()
    assert main(given) == 1
    assert time.monotonic() - begun < 30
    assert "took more than 3 s" in capsys.readouterr().out
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split(") ")[1][:1]:
            return
        time.sleep(0.05)
    pytest.fail("a process is left")


def test_a_command_that_writes_its_file_itself(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"name": "IoU", "value": 0.98, "unit": "", "bar": None, "detail": "", "least": 0.99, "reached": False}
    whole = {"name": "half-precision", "about": {"model": "sam2:tiny"}, "commit": None, "figures": [row]}
    code = f"import pathlib, sys; pathlib.Path(sys.argv[1]).write_text({json.dumps(whole)!r}); sys.exit(1)"
    part = Part("a try", "gpu_own.json", ("-c", code, "{file}"), writes_file=True)
    use(monkeypatch, own=part)
    assert main(given) == 0, "a bar that is missed is a result"
    document = json.loads((tmp_path / "data" / "gpu_own.json").read_text())
    assert (document["commit"], document["about"]) == ("abc1234", {"model": "sam2:tiny"})
    assert document["figures"] == [row | {"better": None}]
    use(monkeypatch, own=Part("a try", "gpu_own.json", ("-c", "pass"), writes_file=True))
    assert main(given) == 1, "the file of an earlier run is no result"


def test_compiled_code_is_kept_by_part_and_removed_before_a_first_start(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shows = "import os, json; home = os.environ['TRITON_SAM_HOME']"
    count = "print(json.dumps({'rate': float(len(os.listdir(home)))})); open(home + '/code-' + os.environ['N'], 'w')"
    made = {
        "first": printing("first.json", shows, count, environment={"N": "1"}, first_start=True),
        "second": printing("second.json", shows, count, environment={"N": "2"}, home="first"),
    }
    use(monkeypatch, **made)
    for _ in range(2):
        assert main(given) == 0
        found = [read(tmp_path / "data" / f"{name}.json").figures[0].value for name in made]
        assert found == [0.0, 1.0]
    assert sorted(path.name for path in (tmp_path / "folder" / "home-first").iterdir()) == ["code-1", "code-2"]


def test_parts_may_follow_options(tmp_path: Path) -> None:
    read_words = gpu_tables.parsed([str(tmp_path), "--commit", "c0ffee", "words", "--output", str(tmp_path), "video"])
    assert (read_words.parts, read_words.commit) == (["words", "video"], "c0ffee")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nonsense"], "no such part: nonsense; there are clicks, service"), ([], "this is no clone: tell --commit")],
)
def test_wrong_words(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_tables, "commit", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), *words])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
