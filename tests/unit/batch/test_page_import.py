"""The web page reads the files of a batch job."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.unit.batch.made_results import FACTS, disk, record_of, result_of
from tests.unit.node import run_node
from triton_sam.batch.outputs.choosing import make_writers
from triton_sam.batch.outputs.merge import write_outputs

SCRIPT = Path(__file__).resolve().parents[2] / "web" / "batch_import.mjs"


def test_the_page_reads_masks_classes_and_names(node: str, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    masks = [disk(50, 40, 20, 15, 12) & ~disk(50, 40, 20, 15, 5), random.random((40, 50)) < 0.6]
    records = [record_of(mask, category_id=category) for mask, category in zip(masks, (7, None), strict=True)]
    result = result_of(records, 50, 40, 4, "plates/stack.tif[2]", {"page": 2})
    facts = replace(FACTS, categories=[{"id": 7, "name": "cell"}])
    write_outputs(tmp_path, ["coco", "geojson"], iter([result]), facts)
    (writer,) = make_writers(["labels"], tmp_path)
    writer.write(replace(result, item=replace(result.item, stem="any name")), bytes)
    given = {
        "coco": json.loads((tmp_path / "annotations.json").read_bytes()),
        "geojson": json.loads((tmp_path / "masks.geojson").read_bytes()),
        "png": base64.b64encode((tmp_path / "labels" / "any name.png").read_bytes()).decode(),
    }

    found = json.loads(run_node(node, SCRIPT, given=json.dumps(given)))

    name = "plates/stack.tif#3"  # of the third page, as the page names it
    segmentations = [record.segmentation for record in records]
    assert found["coco"] == [[name, "cell", segmentations[0]], [name, "object", segmentations[1]]]
    assert found["geojson"] == [name, [["cell", segmentations[0]], [None, segmentations[1]]]]
    assert found["isLabels"]
