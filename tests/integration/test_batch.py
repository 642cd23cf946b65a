"""Batch jobs on the real server: each output as other libraries read it, kills, and bad input on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from typer.testing import CliRunner

from tests.analytic import assert_mask
from tests.batch_data import Results, batch_command, leftovers, results_of, run_batch, write_pictures
from triton_sam import BatchJob
from triton_sam.batch.progress import JobProgress
from triton_sam.batch.state.status import job_status
from triton_sam.cli.app import app
from triton_sam.core.rle import from_rle
from triton_sam.errors import InvalidInput, JobInterrupted, TritonSamError
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
IMAGES, BOXES = 30, 3


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("data") / "pictures", IMAGES, BOXES)


@pytest.fixture(scope="module")
def pictures(boxes: Path) -> Path:
    return boxes.parent / "pictures"


@pytest.fixture(scope="module")
def done(server: RunningServer, boxes: Path, pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job with all outputs."""
    out = tmp_path_factory.mktemp("jobs") / "masks"
    save = ["coco", "geojson", "labels", "overlays"]
    summary = BatchJob(pictures, out, coco=boxes, save=save, label_format="tiff32", url=server.urls["HTTP"]).run()
    assert (summary.done, summary.failed, summary.waiting) == (IMAGES, 0, 0)
    return out


@pytest.fixture(scope="module")
def expected(done: Path) -> Results:
    return results_of(done)


# -- outputs ---------------------------------------------------------------------------------------------------------


def test_masks_are_those_of_the_boxes(done: Path, boxes: Path, pictures: Path) -> None:
    """Ids, categories and masks, as pycocotools reads them."""
    from pycocotools.coco import COCO

    given, found = json.loads(boxes.read_text()), COCO(done / "annotations.json")
    assert found.cats == {category["id"]: category for category in given["categories"]}
    assert found.imgs == {image["id"]: image for image in given["images"]}
    assert sorted(found.anns) == sorted(entry["id"] for entry in given["annotations"])
    for entry in given["annotations"]:
        mask = found.anns[entry["id"]]
        x, y, width, height = entry["bbox"]
        picture = Image.open(pictures / found.imgs[entry["image_id"]]["file_name"])
        assert_mask(found.annToMask(mask).astype(bool), picture, box=(x, y, x + width, y + height))
        assert (mask["image_id"], mask["category_id"]) == (entry["image_id"], entry["category_id"])
        assert mask["area"] == found.annToMask(mask).sum()
        assert 0.89 < mask["score"] <= 0.95


def test_geojson_and_labels_are_the_same_masks(done: Path) -> None:
    from shapely.geometry import shape

    coco = json.loads((done / "annotations.json").read_text())
    areas = {mask["id"]: mask["area"] for mask in coco["annotations"]}
    features = json.loads((done / "masks.geojson").read_text())["features"]
    geometries = {feature["properties"]["id"]: shape(feature["geometry"]) for feature in features}
    assert all(geometry.is_valid for geometry in geometries.values())
    assert {number: geometry.area for number, geometry in geometries.items()} == areas
    for image in coco["images"]:
        labels = tifffile.imread((done / "labels" / image["file_name"]).with_suffix(".tif"))
        masks = [from_rle(mask["segmentation"]) for mask in coco["annotations"] if mask["image_id"] == image["id"]]
        assert labels.dtype == np.uint32
        assert labels.shape == (image["height"], image["width"])
        np.testing.assert_array_equal(labels > 0, np.any(masks, axis=0))
        with Image.open((done / "overlays" / image["file_name"]).with_suffix(".jpg")) as overlay:
            assert overlay.size == (image["width"], image["height"])


def test_the_report_and_the_status(done: Path) -> None:
    report = (done / "report.html").read_text()
    assert "All images are done" in report
    assert report.count("data:image/jpeg") == 24
    status = job_status(done)
    assert (status.running, status.done, status.failed, status.of) == (False, IMAGES, 0, IMAGES)


# -- through other doors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["gRPC", "service"])
def test_the_same_masks_over_grpc_and_through_the_service(
    server: RunningServer, boxes: Path, pictures: Path, tmp_path: Path, expected: Results, door: str
) -> None:
    BatchJob(pictures, tmp_path / "out", coco=boxes, url=server.urls[door]).run()
    assert results_of(tmp_path / "out") == expected


def test_iterating_runs_the_job_and_goes_on(
    server: RunningServer, boxes: Path, pictures: Path, tmp_path: Path, expected: Results
) -> None:
    def job() -> BatchJob:
        return BatchJob(pictures, tmp_path, coco=boxes, url=server.urls["HTTP"])

    first = [result.item.name for result, _ in zip(job(), range(5), strict=False)]
    assert len(first) == 5
    kept = job_status(tmp_path)
    assert not kept.running
    assert 5 <= kept.done < IMAGES
    names = [result.item.name for result in job()]
    assert sorted(names) == sorted(expected)
    assert results_of(tmp_path) == expected
    assert [result.item.name for result in job()] == list(expected), "a finished job, in the order of its images"


def test_prompts_and_results_by_functions(server: RunningServer, pictures: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def whole(path: Path) -> list[Any]:
        if path.stem.endswith("7"):
            raise ValueError("no detector likes it")
        return [(10, 10, 40, 30), {"points": [[5, 5]]}]

    job = BatchJob(pictures, tmp_path, prompts=whole, url=server.urls["HTTP"])
    summary = job.run(on_result=lambda result: seen.append(result.item.name))
    assert (summary.done, summary.failed) == (IMAGES - 3, 3)
    assert len(seen) == len(set(seen)) == IMAGES - 3
    assert {len(masks) for masks in results_of(tmp_path).values()} == {2}
    failures = job_status(tmp_path).failures
    assert all("its prompts failed: ValueError: no detector likes it" in failure.reason for failure in failures)


def test_everything_in_a_stack(server: RunningServer, tmp_path: Path) -> None:
    """Pages of a TIFF are images; each has its label image."""
    stack = np.zeros((3, 40, 50), np.uint8)
    stack[1, 10:25, 5:30] = 200
    stack[2, 4:30, 20:45] = 250
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "in" / "stack.tif", stack, photometric="minisblack")
    options = {"points_per_side": 4, "pred_iou_thresh": 0.5, "stability_score_thresh": 0.5}
    out = tmp_path / "out"
    summary = BatchJob(tmp_path / "in", out, everything=options, save=["coco", "labels"], url=server.urls["HTTP"]).run()
    assert (summary.done, summary.failed) == (3, 0)
    masks = json.loads((out / "annotations.json").read_text())["annotations"]
    assert masks
    assert all("stability_score" in mask for mask in masks)
    assert sorted(path.name for path in (out / "labels").iterdir()) == [f"stack[{page}].png" for page in range(3)]


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_killed_job_goes_on(
    server: RunningServer, boxes: Path, pictures: Path, tmp_path: Path, expected: Results
) -> None:
    out = tmp_path / "out"
    words = (pictures, "--coco", boxes, "--out", out, "--url", server.urls["HTTP"])
    with batch_command(*words, home=tmp_path) as job:
        deadline = time.monotonic() + 120
        while len(list(out.glob("results/*/*.json"))) < 5:
            assert time.monotonic() < deadline
            assert job.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                job.wait(0.02)
        job.send_signal(signal.SIGKILL)
        job.communicate(timeout=60)
    code, output = run_batch(*words, home=tmp_path)
    assert code == 0, output
    assert results_of(out) == expected
    assert not leftovers(out)


def test_a_bad_file_is_recorded_and_tried_again(server: RunningServer, pictures: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    good = next(iter(sorted(pictures.rglob("*.png")))).read_bytes()
    (folder / "good.png").write_bytes(good)
    (folder / "bad.png").write_bytes(good[:200])
    (tmp_path / "boxes.csv").write_text("file,x0,y0,x1,y1\ngood.png,5,5,40,40\nbad.png,5,5,40,40\n")
    words = (folder, "--csv", tmp_path / "boxes.csv", "--out", tmp_path / "out", "--url", server.urls["HTTP"])
    code, output = run_batch(*words, home=tmp_path)
    assert (code, "1 failed" in output) == (1, True), output
    (failure,) = job_status(tmp_path / "out").failures
    assert failure.name == "bad.png"
    assert f"  bad.png: {failure.reason}\n" in output
    assert "bad.png" in (tmp_path / "out" / "report.html").read_text()
    code, output = run_batch(*words, home=tmp_path)
    assert code == 1, "it is not tried again by itself"
    assert "0 in" in output
    code, output = run_batch(*words, "--retry-failed", home=tmp_path)
    assert code == 1
    assert job_status(tmp_path / "out").failures[0].tries == 2


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one picture, two files of prompts, and a job in ``masks``."""
    (tmp_path / "in").mkdir()
    (tmp_path / "empty").mkdir()
    Image.new("RGB", (30, 20)).save(tmp_path / "in" / "a.png")
    image = {"id": 1, "file_name": "a.png", "width": 30, "height": 20}
    other = {"id": 2, "file_name": "b.png", "width": 30, "height": 20}
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9]}
    elsewhere = {"id": 2, "image_id": 2, "category_id": 1, "bbox": [1, 1, 9, 9]}
    category = {"id": 1, "name": "a"}
    documents: dict[str, Any] = {
        "boxes": {"images": [image], "annotations": [box], "categories": [category]},
        "missing": {"images": [image, other], "annotations": [box, elsewhere], "categories": [category]},
        "without": {"images": [image], "annotations": [], "categories": [category]},
    }
    for name, document in documents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    (tmp_path / "wrong.csv").write_text("file,x,y,colour\na.png,1,1,red\n")
    return tmp_path


BAD = {
    "no such input": ("nowhere --everything", "nowhere does not exist"),
    "no images": ("empty --everything", "has no image"),
    "prompts for missing files": ("in --coco missing.json", "b.png"),
    "a wrong column": ("in --csv wrong.csv", "wrong.csv"),
    "COCO without boxes": ("in --coco without.json", "without.json"),
    "no such file of prompts": ("in --coco nowhere.json", "nowhere.json cannot be read"),
    "nothing to segment": ("in", "say what to segment"),
    "two kinds of prompts": ("in --everything --coco boxes.json", "one of them"),
    "an unknown option": ("in --everything --set points_per_sid=3", "points_per_side"),
    "--set without --everything": ("in --coco boxes.json --set points_per_side=3", "add --everything"),
    "an unknown output": ("in --coco boxes.json --save coc", "no output 'coc'"),
    "no scheduler": ("in --coco boxes.json --scheduler tcp://127.0.0.1:9", "no Dask scheduler responds"),
    "no server": ("in --coco boxes.json --patience 0 --url 127.0.0.1:9", "127.0.0.1:9"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    words, told = BAD[case]
    monkeypatch.chdir(folder)
    outcome = CliRunner().invoke(app, ["batch", *words.split(), "--out", "out"])
    assert isinstance(outcome.exception, TritonSamError), outcome.output or outcome.exception
    sentence = str(outcome.exception)
    assert told in sentence, sentence
    assert "\n" not in sentence
    assert len(sentence) < 400


def test_another_job_in_the_folder(server: RunningServer, folder: Path) -> None:
    BatchJob(folder / "in", folder / "out", coco=folder / "boxes.json", url=server.urls["HTTP"]).run()
    with pytest.raises(InvalidInput, match=r"holds another job.*clean was not given and is 5.*another --out"):
        BatchJob(folder / "in", folder / "out", coco=folder / "boxes.json", clean=5).run()
    (folder / "in" / "new.png").write_bytes((folder / "in" / "a.png").read_bytes())
    with pytest.raises(InvalidInput, match=r"new\.png"):
        BatchJob(folder / "in", folder / "out", coco=folder / "boxes.json").run()


def test_the_same_folder_with_a_slash_is_the_same_job(server: RunningServer, folder: Path) -> None:
    def job(inputs: str) -> BatchJob:
        return BatchJob(inputs, folder / "out", coco=folder / "boxes.json", url=server.urls["HTTP"])

    assert job(f"{folder}/in").run().now == 1
    assert job(f"{folder}/in/").run().now == 0


def test_outputs_are_written_again_if_what_is_recorded_has_changed(
    server: RunningServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the last record and the outputs."""
    out = folder / "out"

    def job() -> BatchJob:
        return BatchJob(folder / "in", out, coco=folder / "boxes.json", url=server.urls["HTTP"])

    job().run()
    assert job_status(out).is_finished
    whole = (out / "annotations.json").read_text()
    next(out.glob("results/*/*.json")).unlink()
    (out / "annotations.json").write_text("of an earlier run")
    with monkeypatch.context() as patch:
        patch.setattr("triton_sam.batch.finishing.write_outputs", kill)
        with pytest.raises(KeyboardInterrupt):
            job().run()
    assert not job_status(out).is_finished
    assert job().run().now == 0
    assert (out / "annotations.json").read_text() == whole
    assert job_status(out).is_finished


def kill(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_stop_while_outputs_are_written(server: RunningServer, folder: Path) -> None:
    job = BatchJob(folder / "in", folder / "out", coco=folder / "boxes.json", url=server.urls["HTTP"])

    def stop(step: JobProgress) -> None:
        if step.doing == "writing the outputs":
            job.stop()

    with pytest.raises(JobInterrupted, match="the same command goes on"):
        job.run(stop)
    assert not (folder / "out" / "annotations.json").exists()
    assert job.run().now == 0, "the same job may be run again"
    assert (folder / "out" / "annotations.json").exists()
