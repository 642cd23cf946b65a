"""Every code block of docs/words.md runs, against the server that its first block starts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from tests.words_toy import needs_words_toy
from triton_sam.cli.demo_words import draw_words_scene
from triton_sam.models.catalog import VIDEO_MODEL, get_spec
from triton_sam.models.weights import WeightStore
from triton_sam.server.host import free_port

# A model is set up first, which takes a while.
pytestmark = [needs_words_toy, pytest.mark.triton, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
#: Blocks for a reader with Meta's weights are `console` ones.
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```$", (ROOT / "docs" / "words.md").read_text(), re.M | re.S)
SERVE = "triton-sam serve sam3:shapes\n"
TRACK = [block for block in BLOCKS if "triton-sam track" in block[1]]


def environment(home: Path, port: int) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "TRITON_URL": f"localhost:{port}", "TRITON_SAM_HOME": str(home)}


@contextlib.contextmanager
def serving(home: Path, *more: str) -> Iterator[tuple[int, int]]:
    """The page's server on free ports: Triton's and the service's."""
    port, service = free_port(), free_port()
    options = ["--http-port", str(port), "--grpc-port=0", "--metrics-port=0", "--service-port", str(service)]
    command = [*SERVE.split(), *more, *options]
    with subprocess.Popen(command, env=environment(home, port), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("serving until" in line for line in process.stdout), "the page's server did not start"
            yield port, service
        finally:
            process.terminate()
            process.wait(timeout=60)


def run(language: str, code: str, folder: Path, home: Path, ports: tuple[int, int]) -> str:
    code = code.replace("localhost:8000", f"localhost:{ports[0]}").replace("localhost:8080", f"localhost:{ports[1]}")
    shell = [sys.executable, "-W", "error", "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
    done = subprocess.run(
        [*shell, code],
        cwd=folder,
        env=environment(home, ports[0]),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_no_block_is_left_out() -> None:
    assert BLOCKS[0] == ("bash", SERVE)
    assert len(TRACK) == 1
    assert {language for language, _ in BLOCKS} == {"bash", "python"}


def test_the_page(embedded_server: None, tmp_path: Path) -> None:
    folder, home = tmp_path / "work", tmp_path / "home"
    (folder / "pictures").mkdir(parents=True)
    scene = draw_words_scene()
    for name in ("words.png", "pictures/a.png", "pictures/b.png"):
        scene.save(folder / name)
    with serving(home) as ports:
        for language, code in BLOCKS[1:]:
            if (language, code) not in TRACK:
                run(language, code, folder, home, ports)
    expected = [("red circle", 3), ("star", 2)]
    for name in ("found.json", "answer.json"):
        told = json.loads((folder / name).read_text())["concepts"]
        assert [(concept["text"], concept["found"]) for concept in told] == expected, name
    for name in ("overlay.png", "like_this.png", "not_blue.png"):
        with Image.open(folder / name) as overlay:
            assert overlay.size == scene.size
    job = json.loads((folder / "job" / "annotations.json").read_text())
    assert [category["name"] for category in job["categories"]] == ["red circle", "star"]
    assert len(job["annotations"]) == 2 * (3 + 2)


@pytest.mark.part("video")
def test_the_video(store: WeightStore, embedded_server: None, tmp_path: Path) -> None:
    """Two red circles and a blue one move; a third red one comes after 30 frames."""
    import av

    folder, home = tmp_path / "work", tmp_path / "home"
    folder.mkdir()
    own = WeightStore(home)
    own.blobs.mkdir(parents=True)
    for file in get_spec(VIDEO_MODEL).files:
        own.path(file).symlink_to(store.path(file))
    with av.open(str(folder / "clip.mp4"), "w") as clip:
        stream = clip.add_stream("libx264", rate=10)
        stream.width = stream.height = 384
        stream.pix_fmt = "yuv420p"
        for number in range(40):
            for packet in stream.encode(av.VideoFrame.from_image(drawn(number))):
                clip.mux(packet)
        for packet in stream.encode():
            clip.mux(packet)
    with serving(home, VIDEO_MODEL) as ports:
        [(language, code)] = TRACK
        said = run(language, code, folder, home, ports)
    assert "3 objects (3 red circle) in 40 frames" in said
    document = json.loads((folder / "coco.json").read_text())
    assert [category["name"] for category in document["categories"]] == ["red circle"]
    lengths = sorted(sum(mask is not None for mask in one["segmentations"]) for one in document["annotations"])
    assert lengths[0] == 10
    assert lengths[1:] == [40, 40]


def drawn(number: int) -> Image.Image:
    picture = Image.new("RGB", (384, 384), (232, 234, 228))
    pen = ImageDraw.Draw(picture)
    red, blue = (208, 44, 44), (44, 92, 206)
    things = [(80 + 2 * number, 90, 46, red), (100, 290 - 2 * number, 40, red), (300, 300, 50, blue)]
    if number >= 30:
        things.append((300, 120, 44, red))
    for x, y, radius, colour in things:
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    return picture
