"""Steps of a video session: one sentence for each wrong thing."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.core.prompts import PromptLimits
from triton_sam.core.rle import rle
from triton_sam.core.video.given_mask import GivenMask
from triton_sam.core.video.request import Do, VideoRequest, video_request
from triton_sam.errors import InvalidInput

TRACK = {"session": "a", "step": 3, "do": "track", "frame": 2}
PROMPT = {"session": "a", "step": 1, "do": "prompt", "frame": 0, "object": 7}
POINT = {"points": [[4, 5]], "labels": [1]}


def parse(video: Any, **beside: Any) -> VideoRequest:
    return video_request({"video": video, **beside}, PromptLimits())


def test_steps_are_read() -> None:
    track = parse(TRACK | {"reverse": True, "state": True}, format="bits")
    assert (track.session, track.step, track.do, track.frame) == ("a", 3, Do.TRACK, 2)
    assert track.reverse
    assert track.state
    assert track.format == "bits"
    prompt = parse(PROMPT | POINT | {"box": [0, 0, 9, 9]})
    assert prompt.object == 7
    assert prompt.prompt is not None
    assert prompt.prompt.points.tolist() == [[4, 5]]
    assert prompt.prompt.box is not None
    opened = parse({"session": "a", "step": 0, "do": "open", "length": None, "width": 8, "height": 6})
    assert opened.size == (8, 6)
    assert opened.length is None
    assert opened.format == "rle"
    assert parse({"session": "a", "step": 9, "do": "state"}).state


@pytest.mark.parametrize(
    ("video", "said"),
    [
        (None, "video is an object"),
        ([1], "video is an object"),
        ({}, "video needs do"),
        (TRACK | {"do": "trakc"}, "did you mean track"),
        (TRACK | {"do": {}}, "known are clear"),
        (TRACK | {"frmae": 2}, "unknown key 'frmae': did you mean frame"),
        (TRACK | {1: 2}, "unknown key '1'"),
        (TRACK | {"points": [[1, 2]]}, 'points has no meaning for "do": "track"'),
        ({key: value for key, value in TRACK.items() if key != "frame"}, "frame of video is a whole number.*missing"),
        (TRACK | {"frame": -1}, "frame of video is a whole number from 0"),
        (TRACK | {"frame": 2.0}, "not 2.0"),
        (TRACK | {"frame": 2**31}, "whole number"),
        (TRACK | {"step": True}, "step of video is a whole number from 0 on, not True"),
        (TRACK | {"session": ""}, "session of video is a name"),
        (TRACK | {"session": "x" * 201}, "session of video is a name"),
        (TRACK | {"session": "a\n"}, "printable"),
        (TRACK | {"reverse": 1}, "reverse of video is true or false"),
        (PROMPT, "prompt of video is empty"),
        (PROMPT | POINT | {"object": "cat"}, "object of video is a whole number"),
        (PROMPT | {"points": [[1, 2]], "labels": [3]}, "label 0 is 1"),
        (PROMPT | POINT | {"mask": {"size": [2, 2], "counts": [4]}}, "leave one of them out"),
        (PROMPT | {"mask": [[1]]}, "mask of video is"),
        (PROMPT | {"mask": {"size": [2], "counts": [4]}}, "size of the mask"),
        (PROMPT | {"mask": {"size": [2, 10**12], "counts": [4]}}, "size of the mask"),
        (PROMPT | {"mask": {"size": [2, 2], "counts": [-4]}}, "counts of the mask"),
        (PROMPT | {"mask": {"size": [2, 2], "counts": None}}, "counts of the mask"),
        (PROMPT | {"mask": {"size": [2, 2], "counts": "0" * 5_000_000}}, "length of 5,000,000"),
        (PROMPT | {"mask": {"size": [2, 2], "count": [4]}}, "unknown key 'count'"),
        ({"session": "a", "step": 0, "do": "open", "width": 8}, "belong together"),
        ({"session": "a", "step": 0, "do": "open", "width": 10**6, "height": 8}, "too large"),
        ({"session": "a", "step": 0, "do": "open", "length": 0}, "length of video is a whole number from 1"),
    ],
)
def test_wrong_steps_are_refused_in_a_sentence(video: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse(video)


def test_nothing_else_stands_beside_video() -> None:
    with pytest.raises(InvalidInput, match="'points' cannot stand beside video"):
        parse(TRACK, points=[[1, 2]])
    with pytest.raises(InvalidInput, match="format is one of"):
        parse(TRACK, format="tiff")


def test_prompts_are_checked_against_the_frame() -> None:
    with pytest.raises(InvalidInput, match="lies outside"):
        parse(PROMPT | {"points": [[9, 5]]}).check_prompt(8, 8)
    request = parse(PROMPT | {"mask": {"size": [2, 3], "counts": [6]}})
    request.check_prompt(3, 2)
    with pytest.raises(InvalidInput, match="the mask has 3 x 2 pixels and the frame 8 x 8"):
        request.check_prompt(8, 8)


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.one_of(st.text(max_size=20), st.lists(st.integers(0, 2**31 - 1), max_size=9).map(tuple)),
)
def test_any_counts_are_a_mask_or_a_sentence(height: int, width: int, counts: str | tuple[int, ...]) -> None:
    try:
        pixels = GivenMask(height, width, counts).pixels()
    except InvalidInput:
        return
    assert pixels.shape == (height, width)


def test_a_mask_comes_back() -> None:
    pixels = np.random.default_rng(1).random((5, 7)) > 0.5
    document = json.loads(json.dumps(rle(pixels)))
    request = parse(PROMPT | {"mask": document})
    assert request.mask is not None
    assert (request.mask.pixels() == pixels).all()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(
    ["session", "step", "do", "frame", "object", "points", "labels", "box", "mask", "state", "width"]
)


@given(st.dictionaries(keys, json_values | st.sampled_from([do.value for do in Do])))
def test_any_json_is_a_step_or_a_sentence(video: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidInput):
        parse(video)
