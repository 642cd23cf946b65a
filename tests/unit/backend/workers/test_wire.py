"""Requests and results survive the way to a worker and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from triton_sam import errors
from triton_sam.backend.core import Source
from triton_sam.backend.jobs import Needs, SegmentJob
from triton_sam.backend.workers.wire import (
    DistantEmbedding,
    pack_error,
    pack_job,
    pack_result,
    unpack_error,
    unpack_job,
    unpack_result,
)
from triton_sam.core.concepts.request import ConceptPrompt, ConceptRequest
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.mask_cleaning import Cleaning
from triton_sam.core.prompts import ObjectPrompt, Prompt
from triton_sam.engines.base import Decoded
from triton_sam.engines.concepts import Instances
from triton_sam.errors import TritonSamError

FINITE = st.floats(-1e6, 1e6, width=32)


class Reply:
    """A reply that nobody uses."""

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None: ...

    def fail(self, error: TritonSamError) -> None: ...

    def flush(self) -> None: ...

    def is_cancelled(self) -> bool:
        return False


def floats(*shape: int) -> st.SearchStrategy[npt.NDArray[np.float32]]:
    return arrays.arrays(np.float32, shape, elements=FINITE)


@st.composite
def objects(draw: st.DrawFn) -> ObjectPrompt:
    points = draw(st.integers(0, 3))
    labels = np.array(draw(st.lists(st.integers(0, 1), min_size=points, max_size=points)), np.int32)
    box = draw(st.none() | floats(4))
    mask = draw(st.none() | floats(4, 4))
    return ObjectPrompt(draw(floats(points, 2)), labels, box, mask)


@st.composite
def concepts(draw: st.DrawFn) -> ConceptPrompt:
    count = draw(st.integers(0, 3))
    labels = np.array(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)), np.int32)
    return ConceptPrompt(draw(st.none() | st.text(max_size=9)), draw(floats(count, 4)), labels)


REQUESTS = st.builds(
    ConceptRequest, st.lists(concepts(), min_size=1, max_size=3).map(tuple), st.floats(0, 1), st.integers(1, 200)
)
CONCEPT_PROMPTS = st.builds(
    lambda concepts, form: Prompt((), format=form, concepts=concepts), REQUESTS, st.sampled_from(["rle", "bits"])
)
OBJECT_PROMPTS = st.builds(
    Prompt,
    st.lists(objects(), min_size=1, max_size=3).map(tuple),
    st.booleans(),
    st.sampled_from(["png", "rle", "bits", "logits", "polygon"]),
    st.none() | st.tuples(st.integers(1, 99), st.integers(1, 99)),
    st.none() | st.builds(Cleaning, st.integers(0, 9), st.integers(1, 9)),
)
PROMPTS = OBJECT_PROMPTS | CONCEPT_PROMPTS


def same(one: Any, other: Any) -> None:
    if one is None or other is None:
        assert one is other
    else:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def joined(parts: list[bytes | memoryview]) -> bytes:
    return b"".join(bytes(part) for part in parts)


@given(
    prompt=st.none() | PROMPTS,
    image=st.none() | st.binary(max_size=50),
    embedding=st.none() | floats(1, 2, 3, 3),
    session=st.none() | st.text(max_size=8),
    sequence=st.none() | st.integers(0, 2**40),
    needs=st.builds(Needs, st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    background=st.booleans(),
)
def test_requests(
    prompt: Prompt | None,
    image: bytes | None,
    embedding: npt.NDArray[np.float32] | None,
    session: str | None,
    sequence: int | None,
    needs: Needs,
    background: bool,
) -> None:
    job = SegmentJob(Reply(), prompt, "key", session, True, needs=needs, sequence=sequence, request_id="r")
    job.background = background
    header, parts = pack_job(job, Source(image, embedding))
    got, source = unpack_job(header, joined(parts), Reply())
    assert (got.image_key, got.session, got.latest_wins, got.sequence) == ("key", session, True, sequence)
    assert (got.needs, got.request_id, got.received) == (needs, "r", job.received)
    assert got.background is background
    assert source.image == image
    same(source.embedding, embedding)
    if prompt is None or got.prompt is None:
        assert got.prompt is prompt
        return
    for name in ("multimask", "format", "image_size", "clean"):
        assert getattr(got.prompt, name) == getattr(prompt, name)
    for one, other in zip(got.prompt.objects, prompt.objects, strict=True):
        for name in ("points", "labels", "box", "mask_input"):
            same(getattr(one, name), getattr(other, name))
    assert (got.prompt.concepts is None) is (prompt.concepts is None)
    if prompt.concepts is not None and got.prompt.concepts is not None:
        asked, received = prompt.concepts, got.prompt.concepts
        assert (received.score_threshold, received.most) == (asked.score_threshold, asked.most)
        for concept, sent in zip(received.concepts, asked.concepts, strict=True):
            assert concept.text == sent.text
            same(concept.boxes, sent.boxes)
            same(concept.labels, sent.labels)


@given(
    decoded=st.lists(
        st.integers(1, 3).flatmap(
            lambda masks: st.builds(
                Decoded,
                floats(masks),
                st.none() | floats(masks, 4, 4),
                st.none() | arrays.arrays(np.uint8, (masks, 5, 3)),
                st.none() | arrays.arrays(np.uint8, (masks, 7, 2)),
            )
        ),
        max_size=3,
    ),
    embedding=st.none() | floats(1, 2, 2, 2),
    policy=st.sampled_from(ResizePolicy),
)
def test_results(decoded: list[Decoded], embedding: npt.NDArray[np.float32] | None, policy: ResizePolicy) -> None:
    job = SegmentJob(Reply(), None, "key", embedding=DistantEmbedding(Frame(30, 20, 16, policy)))
    job.timings["decode"] = 1.25
    header, parts = pack_result(job, decoded, embedding)
    other = SegmentJob(Reply(), None, "")
    got = unpack_result(header, joined(parts), other)
    assert (other.image_key, other.timings) == ("key", {"decode": 1.25})
    assert other.embedding is not None
    assert other.embedding.frame == Frame(30, 20, 16, policy)
    if embedding is not None:
        same(other.embedding.array("any"), embedding)
    for one, sent in zip(got, decoded, strict=True):
        for name in ("scores", "logits", "packed", "columns"):
            same(getattr(one, name), getattr(sent, name))


@st.composite
def instances(draw: st.DrawFn) -> Instances:
    """Of one concept: any number, also none."""
    count = draw(st.integers(0, 3))
    decoded = draw(
        st.builds(
            Decoded,
            floats(count),
            st.none() | floats(count, 4, 4),
            st.none() | arrays.arrays(np.uint8, (count, 5, 3)),
            st.none() | arrays.arrays(np.uint8, (count, 7, 2)),
        )
    )
    return Instances(draw(st.floats(0, 1)), draw(st.integers(count, 300)), draw(floats(count, 4)), decoded)


@given(found=st.lists(instances(), min_size=1, max_size=3))
def test_instances(found: list[Instances]) -> None:
    frame = Frame(30, 20, 16, ResizePolicy.SQUASH)
    nothing = ConceptPrompt("any", np.zeros((0, 4), np.float32), np.zeros(0, np.int32))
    prompt = Prompt((), concepts=ConceptRequest((nothing,) * len(found)))
    job = SegmentJob(Reply(), prompt, "key", embedding=DistantEmbedding(frame), instances=found)
    header, parts = pack_result(job, [each.decoded for each in found], None)
    other = SegmentJob(Reply(), prompt, "")
    decoded = unpack_result(json.loads(json.dumps(header)), joined(parts), other)
    for got, sent, masks in zip(other.instances, found, decoded, strict=True):
        assert (got.presence, got.found) == (sent.presence, sent.found)
        assert got.decoded is masks
        same(got.boxes, sent.boxes)
        for name in ("scores", "logits", "packed", "columns"):
            same(getattr(masks, name), getattr(sent.decoded, name))


@pytest.mark.parametrize("kind", [errors.InvalidInput, errors.ImageExpired, errors.QueueFull, errors.Cancelled])
def test_errors(kind: type[TritonSamError]) -> None:
    got = unpack_error(pack_error(kind("what is wrong")))
    assert type(got) is kind
    assert got.wire_message == kind("what is wrong").wire_message
