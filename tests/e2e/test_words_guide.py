"""Every code block of docs/guides/text.md runs, against a model that finds colours in place of SAM 3."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.analytic_concept_graphs import write_analytic_concepts
from tests.analytic_concepts import scene
from tests.integration.serve_folder import serve_folder
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]

#: Blocks for a reader with Meta's weights are `console` ones.
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "text.md"
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
#: The page's words, and the colours that stand for them here.
WORDS = {"coin": "red", "silver spoon": "blue"}


@pytest.fixture(scope="module")
def running(
    video_repository: Path, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The model with words is ``sam3``; a small random network tracks."""
    folder = tmp_path_factory.mktemp("guide")
    repository = Path(shutil.copytree(video_repository, folder / "repository"))
    write_analytic_concepts(repository, folder / "graphs", name="sam3")
    with serve_folder(repository, folder / "home", threads="1") as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page's reader has: a photograph, a folder of some, and a clip of 40 frames."""
    import av

    folder = tmp_path_factory.mktemp("work")
    (folder / "photos").mkdir()
    for name in ("photo.jpg", "photos/a.jpg", "photos/b.jpg"):
        scene().save(folder / name, quality=95, subsampling=0)
    with av.open(str(folder / "clip.mp4"), "w") as clip:
        stream = clip.add_stream("libx264", rate=10)
        stream.width, stream.height = scene().size
        stream.pix_fmt = "yuv420p"
        for _ in range(40):
            clip.mux(stream.encode(av.VideoFrame.from_image(scene())))
        clip.mux(stream.encode())
    return folder


def run(language: str, code: str, folder: Path, running: RunningServer) -> str:
    for word, colour in WORDS.items():
        code = code.replace(word, colour)
    code = code.replace("localhost:8000", running.urls["HTTP"]).replace("localhost:8080", running.urls["service"])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = [sys.executable, "-W", "error", "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
    done = subprocess.run(
        [*shell, code],
        cwd=folder,
        env=os.environ | {"PATH": path, "TRITON_URL": running.urls["HTTP"]},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_page(running: RunningServer, folder: Path) -> None:
    assert {language for language, _ in BLOCKS} == {"bash", "python"}
    said = "".join(run(language, code, folder, running) for language, code in BLOCKS)
    for name in ("found.json", "answer.json"):
        told = json.loads((folder / name).read_text())["concepts"]
        assert [(concept["text"], concept["found"]) for concept in told] == [("red", 3), ("blue", 2)], name
    for name in ("overlay.png", "like_this.png", "not_this.png"):
        with Image.open(folder / name) as overlay:
            assert overlay.size == scene().size
    job = json.loads((folder / "job" / "annotations.json").read_text())
    assert [category["name"] for category in job["categories"]] == ["red", "blue"]
    assert len(job["annotations"]) == 2 * (3 + 2)
    assert "red) in 40 frames" in said
    assert (folder / "overlay.mp4").stat().st_size
    assert {one["category_id"] for one in json.loads((folder / "coco.json").read_text())["annotations"]} == {1}
