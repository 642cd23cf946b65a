"""Damaged models and a damaged cache: one clear sentence each, what can serve does, and what is told mends it."""

from __future__ import annotations

import dataclasses
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.analytic import analytic_spec, assert_mask, write_graphs
from tests.faults.figures import record
from tests.faults.helpers import PATIENCE, POINT
from tests.integration.serve_folder import health, serve_folder
from tests.unit.helpers import FileServer, model_file
from tests.waiting import eventually
from triton_sam import SAM2TritonClient
from triton_sam.models.checksums import digest_of
from triton_sam.models.specs import HttpSource, ModelSpec, Role
from triton_sam.models.weights import WeightStore
from triton_sam.repository.segmenters import write_models
from triton_sam.repository.setup import SetupRequest, set_up
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
#: Bytes overwritten; a file of which only the first half was written; a file missing.
DAMAGED = ("sam2_corrupt", "sam2_cut", "sam2_half")


@pytest.fixture(scope="module")
def graphs_of_own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_graphs(tmp_path_factory.mktemp("graphs"))


@pytest.fixture(scope="module")
def damaged(
    graphs_of_own: tuple[Path, Path],
    embedded_server: None,
    spec: ModelSpec,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A repository of one whole model and every kind of damage."""
    models = tmp_path_factory.mktemp("damaged") / "model_repository"
    for name in ("sam2", *DAMAGED):
        write_models(spec, *graphs_of_own, models, name=name)
    corrupt, cut, half = (models / name / "1" / "decoder.onnx" for name in DAMAGED)
    whole = half.read_bytes()
    for path in (corrupt, cut, half):
        path.unlink()  # a hard link: the others have the same file
    middle = len(whole) // 2
    corrupt.write_bytes(whole[: middle - 200] + bytes(400) + whole[middle + 200 :])
    cut.write_bytes(whole[:middle])
    (models / "stray" / "1").mkdir(parents=True)
    (models / "stray" / "1" / "notes.txt").write_text("no model")
    (models / "empty").mkdir()
    (models / "strange").mkdir()
    (models / "strange" / "config.pbtxt").write_text("this is no config {{{")
    return models


@pytest.fixture(scope="module")
def started(damaged: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, list[str]]]:
    """(a server of it, what it logged at its start)"""
    lines: list[str] = []
    listener = logging.Handler(logging.ERROR)
    listener.emit = lambda entry: lines.append(entry.getMessage())  # type: ignore[method-assign]
    logging.getLogger("triton_sam").addHandler(listener)
    try:
        with serve_folder(damaged, tmp_path_factory.mktemp("home")) as running:
            yield running, lines
    finally:
        logging.getLogger("triton_sam").removeHandler(listener)


@pytest.mark.also_part("faults-processes")
def test_damaged_models_are_told_and_the_others_serve(
    started: tuple[RunningServer, list[str]],
    photographs: Path,
    damaged: Path,
    graphs_of_own: tuple[Path, Path],
    spec: ModelSpec,
) -> None:
    running, lines = started
    told = health(running)
    assert (told["state"], told["versions"]) == ("ready", {"sam2": "1"})
    assert sorted(told["missing"]) == list(DAMAGED)
    for name in DAMAGED:
        assert [line for line in lines if line.startswith(f"{name} does not load")] == [
            f"{name} {told['problems'][name]}"
        ]
        assert "decoder.onnx" in told["problems"][name]
        assert "triton-sam setup" in told["problems"][name], "the mend"
        assert "\n" not in told["problems"][name]
    file = (photographs / "coffee.png").read_bytes()
    with httpx.Client(base_url=running.urls["service"], timeout=PATIENCE, trust_env=False) as client:
        for name in DAMAGED:
            answer = client.post("/v1/images", files={"image": file}, data={"model": name})
            assert answer.status_code == 503, answer.text
            assert "failed to load on this server" in answer.json()["error"]["message"]
        for name in ("stray", "empty", "strange"):
            answer = client.post("/v1/images", files={"image": file}, data={"model": name})
            assert answer.status_code == 404, answer.text
    expect_right_mask(running, "sam2", file)

    # A whole version in its place serves without a restart, and gives the same masks.
    write_models(spec, *graphs_of_own, damaged, name="sam2_half")
    eventually(lambda: "sam2_half" in health(running)["versions"], "the mended model")
    told = health(running)
    assert (list(told["missing"]), told["restarts"]) == (["sam2_corrupt", "sam2_cut"], 0)
    expect_right_mask(running, "sam2_half", file)
    record(
        "damaged_models",
        "corrupt ONNX, half-written version, stray folders in one repository",
        {
            "models told of by one sentence with the mend": (len(told["missing"]) + 1, str(len(DAMAGED))),
            "the whole one serves, the mended one too": ("yes", "yes"),
        },
    )


def expect_right_mask(running: RunningServer, model: str, file: bytes) -> None:
    with SAM2TritonClient(running.urls["HTTP"], model) as client, Image.open(io.BytesIO(file)) as picture:
        client.set_image(file)
        assert_mask(client.segment([POINT]).masks.best, picture, points=[POINT])


def test_the_mend_mends_what_was_written_into(graphs_of_own: tuple[Path, Path], tmp_path: Path) -> None:
    """What is served is a link to the cache, so damage reaches both: `setup`, which errors name, may not believe it."""
    store, models = WeightStore(tmp_path / "home"), tmp_path / "model_repository"
    with FileServer() as source:
        files = []
        for role, path in zip((Role.ENCODER, Role.DECODER), graphs_of_own, strict=True):
            content = path.read_bytes()
            address = HttpSource(source.add(f"/{path.name}", content))
            files.append(model_file(content, address, name=path.name, role=role))
        spec = dataclasses.replace(analytic_spec(), files=tuple(files))
        set_up(SetupRequest(spec, store, models))
        served = models / "sam2" / "1" / "encoder.onnx"
        whole = digest_of(served)
        with served.open("r+b") as stream:
            stream.seek(served.stat().st_size // 2)
            stream.write(bytes(100))
        assert digest_of(served) != whole
        set_up(SetupRequest(spec, store, models))
    assert digest_of(models / "sam2" / "2" / "encoder.onnx") == whole
