from __future__ import annotations

import asyncio
import importlib.util
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image

from tests.unit.service.helpers import TIMEOUT, ask, refusal
from triton_sam.core import samples
from triton_sam.core.samples import sample_photograph
from triton_sam.errors import SetupError
from triton_sam.service import error_responses
from triton_sam.service.routes import synthetic_cells
from triton_sam.service.routes.samples import samples_router

NAMES = ["coffee", "cat", "coins", "tissue", "retina", "cells"]


def fetch(folder: Path | None, *paths: str) -> list[httpx.Response]:
    app = FastAPI()
    error_responses.install(app)
    app.include_router(samples_router(folder))

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=TIMEOUT) as client:
            return list(await asyncio.gather(*(client.get(path) for path in paths)))

    return asyncio.run(run())


def test_the_list() -> None:
    rows = ask("GET", "/samples").json()
    assert [row["name"] for row in rows] == NAMES
    assert rows[0] == {
        "name": "coffee",
        "title": "Coffee",
        "credit": "Rachel Michetti, courtesy of Pikolo Espresso Bar; CC0",
        "width": 600,
        "height": 400,
        "address": "samples/coffee",
        "file": "coffee.png",
    }
    for row in rows:
        assert row["title"]
        assert row["credit"]


def test_every_sample_is_what_the_list_says() -> None:
    for row in ask("GET", "/samples").json():
        answer = ask("GET", f"/{row['address']}")
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=86400"
        with Image.open(io.BytesIO(answer.content)) as picture:
            assert picture.size == (row["width"], row["height"])
            assert answer.headers["content-type"] == Image.MIME[str(picture.format)]


@pytest.mark.parametrize("name", ["nothing", "coffee.png", "%2e%2e%2fsamples.py", "x" * 1000, "%0a"])
def test_an_unknown_name(name: str) -> None:
    sentence = refusal(ask("GET", f"/samples/{name}"), 404, "not_found")
    assert len(sentence) <= 500


def test_the_error_lists_the_names() -> None:
    assert refusal(ask("GET", "/samples/nothing"), 404, "not_found").endswith(", ".join(NAMES))


def test_without_scikit_image() -> None:
    listed, drawn, missing = fetch(None, "/samples", "/samples/cells", "/samples/coffee")
    [row] = listed.json()
    assert row["name"] == "cells"
    assert drawn.headers["content-type"] == "image/jpeg"
    assert refusal(missing, 404, "not_found") == "there is no sample 'coffee': available are cells"


def test_a_wheel_that_lacks_some(tmp_path: Path) -> None:
    Image.new("L", (3, 2)).save(tmp_path / "coins.png")
    listed, coins = fetch(tmp_path, "/samples", "/samples/coins")
    assert [(row["name"], row["width"], row["height"]) for row in listed.json()] == [
        ("coins", 3, 2),
        ("cells", *synthetic_cells.SIZE),
    ]
    assert coins.content == (tmp_path / "coins.png").read_bytes()


def test_the_cells_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    places = synthetic_cells._cell_positions

    def counted(rng: np.random.Generator) -> Any:
        drawn.append(rng)
        return places(rng)

    monkeypatch.setattr(synthetic_cells, "_cell_positions", counted)
    synthetic_cells.picture.cache_clear()
    answers = fetch(None, *["/samples/cells"] * 5)
    assert len(drawn) == 1
    assert len({answer.content for answer in answers}) == 1


def test_the_cells_look_like_cells() -> None:
    with Image.open(io.BytesIO(synthetic_cells.picture())) as picture:
        assert picture.size == synthetic_cells.SIZE
        red, green, blue = np.moveaxis(np.asarray(picture.convert("RGB"), np.float32), 2, 0)
    places = [(int(x), int(y), radius) for x, y, radius in synthetic_cells._cell_positions(places_rng())]
    assert len(places) >= 20
    dark = np.percentile(green, 10)
    assert dark < 40
    for x, y, _ in places:
        assert blue[max(0, y - 5) : y + 5, max(0, x - 5) : x + 5].mean() > 2 * dark
    assert red.mean() < green.mean()


def places_rng() -> np.random.Generator:
    """The generator in the state in which the positions are drawn: after the stray light."""
    rng = np.random.default_rng(synthetic_cells._SEED)
    width, height = synthetic_cells.SIZE
    synthetic_cells._texture(rng, height, width, 200)
    return rng


def test_photographs_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sample_photograph().is_file()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert samples.photograph_folder() is None
    with pytest.raises(SetupError, match="pip install"):
        sample_photograph()
