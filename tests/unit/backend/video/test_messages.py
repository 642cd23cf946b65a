"""From a request's tensors to a job, over the wire to a worker, and back to a response."""

from __future__ import annotations

import dataclasses
import json
import marshal
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.unit.backend.scheduler_helpers import Inbox, image
from tests.unit.backend.video.video_helpers import SPEC
from triton_sam.backend.core import Source
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.replies import DEFAULT_OUTPUTS, ModelInfo
from triton_sam.backend.requests import Turn
from triton_sam.backend.video.answers import build_video
from triton_sam.backend.video.outcome import VideoOutcome
from triton_sam.backend.video.requests import StepReader
from triton_sam.backend.video.session_state import StateNotes
from triton_sam.backend.workers.wire import pack_job, pack_result, unpack_job, unpack_result
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.masks import decode, full_size, unpack_bits
from triton_sam.core.prompts import PromptLimits
from triton_sam.core.video.state import SessionState
from triton_sam.core.video.state_bytes import pack_state
from triton_sam.engines.base import Decoded
from triton_sam.errors import InvalidInput, TooLarge, Unsupported
from triton_sam.models.specs import ModelSpec
from triton_sam.settings import Settings

INFO = ModelInfo(SPEC.id, "1", "float32")
FRAME = Frame(13, 7, 32, ResizePolicy.SQUASH)
TRACK: dict[str, Any] = {"session": "a", "step": 3, "do": "track", "frame": 2, "state": True}
PROMPT: dict[str, Any] = {"session": "a", "step": 1, "do": "prompt", "frame": 0, "object": 7}
OPEN: dict[str, Any] = {"session": "a", "step": 0, "do": "open"}


class Tensor:
    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array

    def as_numpy(self) -> npt.NDArray[Any]:
        return self._array


IMAGE = {"image": Tensor(np.frombuffer(bytes(image().data), np.uint8))}


def read(
    video: dict[str, Any],
    tensors: dict[str, Tensor] | None = None,
    *,
    form: str = "rle",
    spec: ModelSpec = SPEC,
    wanted: frozenset[str] = DEFAULT_OUTPUTS,
    **parameters: Any,
) -> tuple[SegmentJob, bytes | None]:
    settings = Settings(video_session_bytes=1000)
    session = parameters.pop("session_id", None)
    reader = StepReader(spec, settings, PromptLimits())
    document = {"video": video, "format": form}
    return reader.read(document, tensors or {}, Turn(session, parameters), Inbox(), wanted, INFO)


def test_models_without_memory_say_so_in_a_sentence() -> None:
    with pytest.raises(Unsupported, match=f"{SPEC.id} has no memory modules: set up"):
        read(OPEN, spec=dataclasses.replace(SPEC, memory=None))


@pytest.mark.parametrize(
    ("video", "tensors", "parameters", "said"),
    [
        (TRACK, {}, {}, '"track" of video needs image'),
        (OPEN, IMAGE, {}, '"open" of video takes no image'),
        (TRACK, IMAGE | {"image_key": Tensor(np.array([b"k"], object))}, {}, "a video has no image_key"),
        (TRACK, IMAGE, {"session_id": "b"}, "are one name"),
        (TRACK, IMAGE, {"session_id": "a", "latest_wins": True}, "latest_wins"),
        (TRACK, IMAGE | {"video_state": Tensor(np.zeros(3, np.uint8))}, {}, 'restores a session with "do": "open"'),
    ],
)
def test_wrong_requests_are_refused(
    video: dict[str, Any], tensors: dict[str, Tensor], parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        read(video, tensors, **parameters)


def test_a_state_beyond_the_budget_is_not_even_copied() -> None:
    with pytest.raises(TooLarge, match="a session may have 1,000"):
        read(OPEN, {"video_state": Tensor(np.zeros(9_000_000, np.uint8))})
    job, _ = read(OPEN, {"video_state": Tensor(np.zeros(900, np.uint8))})
    assert job.video is not None
    assert job.video.state == bytes(900)


def test_a_job_is_a_step_of_its_session_in_the_background() -> None:
    job, frame = read(TRACK, IMAGE, session_id="a", sequence=4)
    assert frame == bytes(image().data)
    assert (job.session, job.sequence, job.background) == ("a", 4, True)
    assert job.image_key
    assert job.needs.columns


def over_the_wire(job: SegmentJob, source: Source) -> tuple[SegmentJob, Source]:
    header, parts = pack_job(job, source)
    return unpack_job(marshal.loads(marshal.dumps(header)), b"".join(parts), Inbox())


@pytest.mark.parametrize(
    "video",
    [
        TRACK | {"reverse": True},
        PROMPT | {"points": [[1, 2], [3.5, 4]], "labels": [1, 0], "box": [0, 0, 5, 5]},
        PROMPT | {"mask": {"size": [2, 3], "counts": "06"}},
        PROMPT | {"mask": {"size": [2, 3], "counts": [2, 4]}},
    ],
)
def test_steps_survive_the_way_to_a_worker(video: dict[str, Any]) -> None:
    job, frame = read(video, IMAGE)
    there, source = over_the_wire(job, Source(frame))
    assert source.image == frame
    assert there.video is not None
    assert job.video is not None
    one, other = job.video.request, there.video.request
    assert (one.named, one.session, one.object, one.reverse, one.state) == (
        other.named,
        other.session,
        other.object,
        other.reverse,
        other.state,
    )
    assert one.mask == other.mask
    assert (one.prompt is None) == (other.prompt is None)
    if one.prompt is not None and other.prompt is not None:
        assert one.prompt.points.tolist() == other.prompt.points.tolist()
        assert one.prompt.labels.tolist() == other.prompt.labels.tolist()
        assert one.prompt.box is not None
        assert other.prompt.box is not None
        assert one.prompt.box.tolist() == other.prompt.box.tolist()
    assert there.background


def test_a_state_survives_the_way_to_a_worker() -> None:
    job, _ = read(OPEN | {"length": 5, "width": 8, "height": 6}, {"video_state": Tensor(np.arange(9, dtype=np.uint8))})
    there, _ = over_the_wire(job, Source())
    assert there.video is not None
    assert there.video.state == bytes(range(9))
    assert there.video.request.size == (8, 6)
    assert there.video.request.length == 5


def answered(form: str, wanted: frozenset[str], *, distant: bool) -> dict[str, npt.NDArray[Any]]:
    """The response to a step with two objects, computed here or by a worker."""
    job, _ = read(TRACK, IMAGE, form=form, wanted=wanted)
    decoded = [Decoded(np.float32([0.5 + name / 10]), half(name)) for name in (0, 1)]
    engine: Any = SimpleNamespace(spec=SPEC, memories_to_host=list)
    state = StateNotes(engine, None, (13, 7), 2, {}, {})
    assert job.video is not None
    job.video.outcome = VideoOutcome(FRAME, (4, 9), (1.5, -2.0), (4, 9, 11), {4: [1, 2]}, {}, state)
    if distant:
        header, parts = pack_result(job, decoded, None)
        job.video.outcome = None
        decoded = unpack_result(marshal.loads(marshal.dumps(header)), b"".join(parts), job)
    return build_video(job, decoded, INFO, wanted)


def half(name: int) -> npt.NDArray[np.float32]:
    """[1,8,8] logits: above 0 on one half."""
    rows = np.linspace(-1, 1, 8, dtype=np.float32)
    return (np.broadcast_to(rows[:, None] if name else rows, (8, 8)))[None].copy()


@pytest.mark.parametrize("distant", [False, True])
@pytest.mark.parametrize("form", ["rle", "png", "bits"])
def test_a_response_has_one_mask_for_each_object_by_its_number(form: str, distant: bool) -> None:
    wanted = frozenset({"result_json", "masks", "scores", "low_res_logits", "video_state"})
    outputs = answered(form, wanted, distant=distant)
    result = json.loads(outputs["result_json"][0])
    video = result["video"]
    assert video["objects"] == [4, 9]
    assert video["appearance"] == [1.5, -2.0]
    assert video["known"] == [4, 9, 11]
    assert video["forgotten"] == {"4": [1, 2]}
    assert "dropped" not in video
    assert (video["session"], video["step"], video["frame"]) == ("a", 3, 2)
    assert (result["width"], result["height"], result["model"]) == (13, 7, SPEC.id)
    assert [entry["object"] for entry in result["masks"]] == [4, 9]
    assert [entry["score"] for entry in result["masks"]] == pytest.approx([0.5, 0.6])
    expected = np.stack([full_size(half(name)[0], FRAME) for name in (0, 1)])
    np.testing.assert_array_equal(unpack_bits(outputs["masks"], 13), expected)
    assert outputs["low_res_logits"].shape == (2, 1, 8, 8)
    assert outputs["scores"].shape == (2, 1)
    if form != "bits":
        np.testing.assert_array_equal(np.stack([decode(entry) for entry in result["masks"]]), expected)
    assert outputs["video_state"].tobytes() == pack_state(SessionState(SPEC.id, None, (13, 7), 2, ()))


def test_a_response_without_masks_is_short() -> None:
    job, _ = read(OPEN)
    assert job.video is not None
    job.video.outcome = VideoOutcome()
    outputs = build_video(job, [], INFO, DEFAULT_OUTPUTS)
    assert set(outputs) == {"result_json"}
    result = json.loads(outputs["result_json"][0])
    assert result["masks"] == []
    assert "width" not in result
