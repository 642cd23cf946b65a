"""Small exported networks on one server: masks equal torch's, models side by side, and encoders for another tool.

Every model, photograph and precision has its turn in the part "exports".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.integration.paintera_lane import (
    INPUTS,
    Lane,
    as_paintera_sends,
    connected,
    scaled_and_padded,
    tensors,
)
from tests.integration.serve_folder import serve_folder
from tests.integration.torch_reference import TorchReference
from tests.unit.export.small import Small, SmallFactory, assert_close
from triton_sam import SAM2TritonClient
from triton_sam.models.catalog import get_spec
from triton_sam.repository.profiles import PAINTERA, write_profile_model
from triton_sam.repository.setup import write_exported
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]

#: Segmenter -> the model that was exported for it.
SEGMENTERS = {"sam2": "sam2.1:tiny", "sam3": "sam3:full"}
#: Paintera's model -> the small network that stands for its large one.
ENCODERS = {
    "sam1_encoder": "sam1:vit_b",
    "sam2.1_large_encoder": "sam2.1:tiny",
    "sam3_tracker_encoder_fp16": "sam3:full",
}
#: Paintera's names of outputs, in the order of ours.
OUTPUTS = {
    "sam1_encoder": ["image_embeddings"],
    "sam2.1_large_encoder": ["image_embed", "high_res_feats_0", "high_res_feats_1"],
    "sam3_tracker_encoder_fp16": ["image_embeddings.0", "image_embeddings.1", "image_embeddings.2"],
}
POINTS, LABELS = [[365.0, 290.0], [120.0, 250.0]], [1, 0]
BOX = [144.0, 16.0, 420.0, 224.0]
#: As a share of the deviation: what the parity check allows any number of an export.
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def running(
    small_exports: SmallFactory, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("served")
    models = folder / "model_repository"
    for name, model_id in SEGMENTERS.items():
        assert write_exported(get_spec(model_id), small_exports(model_id).folder, models)[0] == name
    for model in PAINTERA.models:
        write_profile_model(PAINTERA, model, small_exports(ENCODERS[model.name]).folder, models)
    with serve_folder(models, folder / "home") as started:
        yield started


@pytest.fixture(scope="module")
def picture(photographs: Path) -> Image.Image:
    with Image.open(photographs / "coffee.png") as opened:
        return opened.convert("RGB")


def prompts(mask: Any) -> dict[str, dict[str, Any]]:
    return {
        "points": {"points": POINTS, "labels": LABELS},
        "box": {"box": BOX},
        "box and point": {"box": BOX, "points": POINTS[:1], "labels": [1]},
        "mask and point": {"points": POINTS[:1], "labels": [1], "mask_input": mask},
    }


def test_masks_equal_torch(running: RunningServer, small_exports: SmallFactory, picture: Image.Image) -> None:
    made = small_exports("sam2.1:tiny")
    reference = TorchReference(made.network, made.spec.side, keeps_aspect=False)
    fed_back = reference.logits(picture, points=POINTS, labels=LABELS, multimask=True)[0][:1]
    with SAM2TritonClient(running.urls["HTTP"], "sam2") as client:
        client.set_image(picture)
        for kind, prompt in prompts(fed_back[0]).items():
            expected, scores = reference.logits(picture, **prompt, multimask=True)
            asked = {
                f"point_{key}": prompt[old]
                for key, old in (("coords", "points"), ("labels", "labels"))
                if old in prompt
            }
            asked |= {"box": prompt.get("box")}
            if "mask_input" in prompt:
                asked["mask_input"] = fed_back
            logits, given_scores = client.predict(**asked, multimask_output=True)
            assert_close(logits[0], expected, TOLERANCE)
            np.testing.assert_allclose(given_scores[0], scores, atol=1e-3, err_msg=kind)
            masks = client.segment(**prompt, multimask=True)
            assert masks.result["model"] == "sam2.1:tiny"
            large = reference.large_logits(picture, **prompt, multimask=True)
            unlike = masks.masks.masks != (large > 0)
            assert np.abs(large[unlike]).max(initial=0.0) <= 2 * TOLERANCE * large.std(), kind
            assert 0.05 < (large > 0).mean() < 0.95, "the mask is nearly all or nothing: choose another seed"


def test_models_answer_side_by_side(running: RunningServer, small_exports: SmallFactory, picture: Image.Image) -> None:
    """Each for itself, in turn: its own masks, its own scores, its own id."""
    with (
        SAM2TritonClient(running.urls["HTTP"], "sam2") as hiera,
        SAM2TritonClient(running.urls["gRPC"], "sam3:full") as tracker,
    ):
        for client in (hiera, tracker):
            client.set_image(picture)
        before = [client.predict(POINTS, LABELS, multimask_output=True) for client in (hiera, tracker)]
        again = [client.predict(POINTS, LABELS, multimask_output=True) for client in (tracker, hiera)][::-1]
        for first, second in zip(before, again, strict=True):
            assert_close(second[0], first[0], TOLERANCE)
        assert [client.segment(POINTS, LABELS).result["model"] for client in (hiera, tracker)] == [
            "sam2.1:tiny",
            "sam3:full",
        ]
    made = small_exports("sam3:full")
    pixels = np.asarray(picture.resize((made.spec.side,) * 2, Image.Resampling.BILINEAR), np.float32) / 255
    scale = np.array([made.spec.side / length for length in picture.size], np.float32)
    feeds = made.encode(np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])) | {
        made.spec.decoder.points: np.array([POINTS], np.float32) * scale,
        made.spec.decoder.labels: np.array([LABELS], np.float32),
        "multimask_output": np.ones(1, np.float32),
    }
    assert_close(before[1][0], made.decode(feeds)[0], TOLERANCE)


@pytest.mark.parametrize("model", INPUTS)
def test_an_encoder_for_paintera(
    running: RunningServer, small_exports: SmallFactory, picture: Image.Image, model: str
) -> None:
    """Its names, its range of pixels ([-1,1] for SAM 3), its stream."""
    made: Small = small_exports(ENCODERS[model])
    pixels = scaled_and_padded(picture, made.spec.side)
    with connected(running) as stub:
        lane = Lane(stub)
        answer = lane.answer(lane.send(model, as_paintera_sends(pixels, model)))
        lane.close()
    assert answer.infer_response.model_name == model
    found = tensors(answer)
    assert sorted(found) == sorted(OUTPUTS[model])
    for name, expected in zip(OUTPUTS[model], made.encode(pixels).values(), strict=True):
        assert_close(found[name], expected, TOLERANCE)
