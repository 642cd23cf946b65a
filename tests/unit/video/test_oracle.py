"""The oracle itself, against transformers' session where that follows Meta's predictor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Sam2VideoInferenceSession, Sam3TrackerVideoInferenceSession

from tests.oracles.video import Definition, VideoOracle
from tests.video_models import VideoModel
from tests.video_script import HEIGHT, WIDTH
from triton_sam.models.architecture import Backbone


@pytest.mark.parametrize("model_id", ["sam2.1:tiny", "sam3:full"])
def test_tracking_without_corrections(
    model_id: str, video_model: Callable[[str], VideoModel], new_oracle: Callable[[str], VideoOracle]
) -> None:
    model, oracle = video_model(model_id), new_oracle(model_id)
    frames = 9
    oracle.length = frames
    # transformers resizes a memory's mask before its sigmoid in all generations.
    oracle.definition = Definition()
    found = {}
    oracle.add_points(0, 1, np.array([[100.0, 80.0]]), np.array([1]))
    for frame, objects in oracle.propagate(0):
        found[frame] = objects[1].logits
    for frame, logits in _transformers(model, oracle, frames).items():
        difference = float((logits - found[frame]).abs().max())
        assert difference <= 1e-3 * float(found[frame].std()), frame


def _transformers(model: VideoModel, oracle: VideoOracle, frames: int) -> dict[int, torch.Tensor]:
    perception = model.spec.architecture.backbone is Backbone.PERCEPTION
    kind: Any = Sam3TrackerVideoInferenceSession if perception else Sam2VideoInferenceSession
    video = torch.cat(oracle.pixels[:frames])
    session = kind(video=video, video_height=HEIGHT, video_width=WIDTH, dtype=torch.float32)
    index = session.obj_id_to_idx(1)
    point = torch.tensor([[[[100.0 / WIDTH, 80.0 / HEIGHT]]]]) * model.spec.side
    session.add_point_inputs(index, 0, {"point_coords": point, "point_labels": torch.ones(1, 1, 1, dtype=torch.int32)})
    session.obj_with_new_inputs = [1]
    first = model.reference(session, frame_idx=0)
    found = {0: first.pred_masks}
    for output in model.reference.propagate_in_video_iterator(session, start_frame_idx=1):
        found[output.frame_idx] = output.pred_masks
    return found
