"""Every code block of the guides to words, everything, batch jobs, videos and questions runs, against small models.

One of them finds colours in place of SAM 3. Blocks marked ``<!-- not run: REASON -->`` are left out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.analytic_concept_graphs import write_analytic_concepts
from tests.analytic_concepts import scene
from tests.integration.vlm_serving import serving_vlms
from tests.stack_files import imagej_tiff, volume
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.serving import RunningServer
from triton_sam.video.demo_clip import FRAMES, HEIGHT, RATE, WIDTH, drawn_frames

pytestmark = [pytest.mark.triton, pytest.mark.torch]

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
_BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: The words of text.md, and the colours that stand for them here.
WORDS = {"coin": "red", "silver spoon": "blue"}
STACK = (8, 96, 128)


@pytest.fixture(scope="module")
def running(
    video_repository: Path, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The model with words is ``sam3``; a small random network, ``sam2``, tracks; ``shapes`` answers questions."""
    folder = tmp_path_factory.mktemp("guide")
    repository = Path(shutil.copytree(video_repository, folder / "repository"))
    write_analytic_concepts(repository, folder / "graphs", name="sam3")
    segmenters = find_segmenters(repository)
    with serving_vlms(
        folder, {"vlm:shapes": None}, repository=repository, segmenters=segmenters, threads="1"
    ) as started:
        yield started


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, code) of what a reader of the page can run here."""
    found = _BLOCK.findall((GUIDES / page).read_text())
    assert {language for _, language, _ in found} <= {"bash", "python", "text"}
    assert any(not unable and language == "bash" for unable, language, _ in found)
    return [(language, code) for unable, language, code in found if not unable and language != "text"]


def run_page(page: str, folder: Path, running: RunningServer, words: Mapping[str, str] | None = None) -> str:
    """Runs the blocks of a page in a folder, in order; returns what they print."""
    said = []
    here = {"localhost:8000": running.urls["HTTP"], "localhost:8080": running.urls["service"]} | dict(words or {})
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for language, code in blocks(page):
        for written, meant in here.items():
            code = code.replace(written, meant)
        shell = [sys.executable, "-W", "error", "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
        done = subprocess.run(
            [*shell, code],
            cwd=folder,
            env=os.environ | {"PATH": path, "TRITON_URL": running.urls["HTTP"], "TRITON_SAM_HOME": str(folder)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        said.append(done.stdout)
    return "".join(said)


def write_clip(path: Path, pictures: list[Image.Image]) -> None:
    import av

    with av.open(str(path), "w") as clip:
        stream = clip.add_stream("libx264", rate=int(RATE))
        stream.width, stream.height = pictures[0].size
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            clip.mux(stream.encode(av.VideoFrame.from_image(picture)))
        clip.mux(stream.encode())


def test_words(running: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("photo.jpg", "photos/a.jpg", "photos/b.jpg"):
        scene().save(tmp_path / name, quality=95, subsampling=0)
    write_clip(tmp_path / "clip.mp4", [scene()] * 40)
    said = run_page("text.md", tmp_path, running, WORDS)
    for name in ("found.json", "answer.json"):
        told = json.loads((tmp_path / name).read_text())["concepts"]
        assert [(concept["text"], concept["found"]) for concept in told] == [("red", 3), ("blue", 2)], name
    for name in ("overlay.png", "like_this.png", "not_this.png"):
        with Image.open(tmp_path / name) as overlay:
            assert overlay.size == scene().size
    job = json.loads((tmp_path / "job" / "annotations.json").read_text())
    assert [category["name"] for category in job["categories"]] == ["red", "blue"]
    assert len(job["annotations"]) == 2 * (3 + 2)
    assert "red) in 40 frames" in said
    assert (tmp_path / "overlay.mp4").stat().st_size
    assert {one["category_id"] for one in json.loads((tmp_path / "coco.json").read_text())["annotations"]} == {1}


def test_everything(running: RunningServer, tmp_path: Path) -> None:
    said = run_page("everything.md", tmp_path, running)
    assert re.search(r'"of": ?64\b', said.partition("event: result")[2])
    for name in ("labels.png", "overlay.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.size == (600, 400)
    for name in ("masks.json", "found.json"):
        assert isinstance(json.loads((tmp_path / name).read_text()), list)


def test_batch(running: RunningServer, tmp_path: Path) -> None:
    said = run_page("batch.md", tmp_path, running)
    document = json.loads((tmp_path / "masks" / "annotations.json").read_text())
    assert [(found["id"], found["category_id"]) for found in document["annotations"]] == [(1, 1), (2, 2)]
    assert [category["name"] for category in document["categories"]] == ["cup", "spoon"]
    for name in ("masks/report.html", "masks/overlays/coffee.jpg", "found/labels/coffee.png"):
        assert (tmp_path / name).stat().st_size
    assert said.splitlines()[-1].startswith("coffee.png [")


def test_video(running: RunningServer, tmp_path: Path) -> None:
    pictures = [frame.picture for frame in drawn_frames()]
    write_clip(tmp_path / "clip.mp4", pictures)
    imagej_tiff(tmp_path / "cells.tif", volume(STACK))
    said = run_page("video.md", tmp_path, running)
    assert sum(line.split()[0].isdigit() for line in said.splitlines() if line.split()) >= FRAMES
    assert len(list((tmp_path / "masks").glob("*.png"))) == FRAMES
    for name in ("overlay.mp4", "both.mp4", "coco.json"):
        assert (tmp_path / name).stat().st_size
    with Image.open(tmp_path / "masks" / "000000.png") as labels:
        assert labels.size == (WIDTH, HEIGHT)
    for name, objects in (("labels.tif", {0, 1, 2}), ("volume.tif", {0, 1})):
        labels = tifffile.imread(tmp_path / name)
        assert labels.shape == STACK
        assert set(np.unique(labels)) <= objects


def test_questions(running: RunningServer, tmp_path: Path) -> None:
    """The toy's answers are right; its segmenter here is a random network."""
    said = run_page("questions.md", tmp_path, running).lower()
    assert said.count("yellow") == 2
    assert "two circles" in said
    with Image.open(tmp_path / "scene.png") as picture, Image.open(tmp_path / "overlay.png") as overlay:
        assert overlay.size == picture.size
    (region,) = json.loads((tmp_path / "found.json").read_text())["regions"]
    assert region["point"]
