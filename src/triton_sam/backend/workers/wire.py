"""Requests, results and errors as headers and bodies of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam import errors
from triton_sam.backend.core import Source
from triton_sam.backend.jobs import Needs, SegmentJob, SegmentReply
from triton_sam.backend.video.wire import pack_outcome, pack_step, unpack_outcome, unpack_step
from triton_sam.backend.workers.concept_wire import (
    pack_concepts,
    pack_instances,
    unpack_concepts,
    unpack_instances,
)
from triton_sam.core.everything.candidates import Candidates, RunMask
from triton_sam.core.everything.driver import Progress
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.mask_cleaning import Cleaning
from triton_sam.core.prompts import ObjectPrompt, Prompt
from triton_sam.engines.base import Decoded, FloatArray
from triton_sam.errors import InternalError, TritonSamError

Header = dict[str, Any]
Body = list[bytes | memoryview]
ResultBody = list[memoryview]
_ERRORS = {
    cls.__name__: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TritonSamError)
}


@dataclass(frozen=True, eq=False)
class DistantEmbedding:
    """An embedding that stays in a worker: its geometry, and its main tensor if that was requested."""

    frame: Frame
    tensor: FloatArray | None = None

    @property
    def nbytes(self) -> int:
        return 0

    def array(self, name: str) -> FloatArray:
        """[1,256,64,64]; only the tensor that was requested is here."""
        assert self.tensor is not None
        return self.tensor

    def framed(self, frame: Frame) -> DistantEmbedding:
        return DistantEmbedding(frame, self.tensor)


# -- requests ----------------------------------------------------------------------------------------------------


def pack_job(job: SegmentJob, source: Source) -> tuple[Header, Body]:
    """A request, without its reply."""
    body: Body = []
    header: Header = {
        "key": job.image_key,
        "session": job.session,
        "latest": job.latest_wins,
        "sequence": job.sequence,
        "needs": [job.needs.logits, job.needs.pixels, job.needs.embedding, job.needs.columns],
        "request": job.request_id,
        "run": job.run,
        "background": job.background,
        # Linux's monotonic clock is one clock for all processes.
        "received": job.received,
    }
    if source.image is not None:
        header["image"] = len(source.image)
        body.append(source.image)
    if source.embedding is not None:
        header["embedding"] = list(source.embedding.shape)
        body.append(_bytes(np.ascontiguousarray(source.embedding, np.float32)))
    if job.prompt is not None:
        header["prompt"] = _pack_prompt(job.prompt, body)
    if job.video is not None:
        header["video"] = pack_step(job.video)
        header["state"] = None if job.video.state is None else len(job.video.state)
        body.append(job.video.state or b"")
    return header, body


def unpack_job(header: Mapping[str, Any], body: bytes | memoryview, reply: SegmentReply) -> tuple[SegmentJob, Source]:
    """The request of :func:`pack_job`. Nothing of it refers to ``body`` afterwards."""
    image: bytes | None = None
    embedding: npt.NDArray[np.float32] | None = None
    at = 0
    if "image" in header:
        at = header["image"]
        image = bytes(body[:at])
    if "embedding" in header:
        embedding, at = _array(body, at, header["embedding"], np.float32)
        embedding = embedding.copy()
    prompt = _unpack_prompt(header["prompt"], body, at) if "prompt" in header else None
    job = SegmentJob(
        reply,
        prompt,
        header["key"],
        header["session"],
        header["latest"],
        needs=Needs(*header["needs"]),
        sequence=header["sequence"],
        request_id=header["request"],
        received=header["received"],
        only_copied=True,
        run=header["run"],
        background=header["background"],
    )
    if "video" in header:  # its state is at the end
        size = header["state"]
        job.video = unpack_step(header["video"], None if size is None else bytes(body[len(body) - size :]))
    return job, Source(image, embedding)


def _pack_prompt(prompt: Prompt, body: Body) -> Header:
    objects = []
    for entry in prompt.objects:
        mask = None
        if entry.mask_input is not None:
            mask = list(entry.mask_input.shape)
            body.append(_bytes(np.ascontiguousarray(entry.mask_input, np.float32)))
        box = None if entry.box is None else entry.box.tolist()
        objects.append([entry.points.tolist(), entry.labels.tolist(), box, mask])
    return {
        "objects": objects,
        "multimask": prompt.multimask,
        "format": prompt.format,
        "size": prompt.image_size,
        "clean": None if prompt.clean is None else [prompt.clean.holes, prompt.clean.islands],
        "everything": None if prompt.everything is None else asdict(prompt.everything),
        "concepts": None if prompt.concepts is None else pack_concepts(prompt.concepts),
    }


def _unpack_prompt(header: Mapping[str, Any], body: bytes | memoryview, at: int) -> Prompt:
    objects = []
    for points, labels, box, shape in header["objects"]:
        mask = None
        if shape is not None:
            mask, at = _array(body, at, shape, np.float32)
            mask = mask.copy()
        objects.append(
            ObjectPrompt(
                np.array(points, np.float32).reshape(-1, 2),
                np.array(labels, np.int32),
                None if box is None else np.array(box, np.float32),
                mask,
            )
        )
    size, clean, everything, concepts = (header[name] for name in ("size", "clean", "everything", "concepts"))
    return Prompt(
        tuple(objects),
        header["multimask"],
        header["format"],
        None if size is None else (size[0], size[1]),
        None if clean is None else Cleaning(*clean),
        None if everything is None else EverythingOptions(**everything),
        None if concepts is None else unpack_concepts(concepts),
    )


# -- results -----------------------------------------------------------------------------------------------------


def pack_result(job: SegmentJob, decoded: Sequence[Decoded], embedding: FloatArray | None) -> tuple[Header, ResultBody]:
    """A computed job."""
    body, answers = ResultBody(), []
    for answer in decoded:
        shapes: list[list[int] | None] = []
        for array in (answer.logits, answer.packed, answer.columns):
            shapes.append(None if array is None else list(array.shape))
            if array is not None:
                body.append(_bytes(np.ascontiguousarray(array)))
        answers.append([answer.scores.tolist(), *shapes])
    header: Header = {"key": job.image_key, "timings": job.timings, "decoded": answers}
    if job.wants_concepts:
        header["instances"] = pack_instances(job.instances)
    if job.video is not None:
        assert job.video.outcome is not None  # jobs without one have failed before
        state = job.video.outcome.state_bytes()
        header["video"] = pack_outcome(job.video.outcome, state)
        if state:  # a lone mask may be lent instead of copied
            body.append(memoryview(state))
        return header, body
    assert job.embedding is not None  # jobs without one have failed before
    frame = job.embedding.frame
    header["frame"] = [frame.width, frame.height, frame.side, frame.policy.value]
    if embedding is not None:
        header["embedding"] = list(embedding.shape)
        body.append(_bytes(np.ascontiguousarray(embedding, np.float32)))
    return header, body


def unpack_result(header: Mapping[str, Any], body: bytes | memoryview, job: SegmentJob) -> list[Decoded]:
    """The results of :func:`pack_result`, and their job with what a response says of it. Arrays refer to ``body``."""
    at = 0
    decoded = []
    for scores, logits_shape, packed_shape, columns_shape in header["decoded"]:
        logits: FloatArray | None = None
        packed: npt.NDArray[np.uint8] | None = None
        columns: npt.NDArray[np.uint8] | None = None
        if logits_shape is not None:
            logits, at = _array(body, at, logits_shape, np.float32)
        if packed_shape is not None:
            packed, at = _array(body, at, packed_shape, np.uint8)
        if columns_shape is not None:
            columns, at = _array(body, at, columns_shape, np.uint8)
        decoded.append(Decoded(np.array(scores, np.float32), logits, packed, columns))
    job.image_key = header["key"]
    job.timings = dict(header["timings"])
    if "instances" in header:
        job.instances = unpack_instances(header["instances"], decoded)
    if job.video is not None:
        size = header["video"]["state"]
        job.video.outcome = unpack_outcome(header["video"], None if size is None else bytes(body[at : at + size]))
        return decoded
    tensor: FloatArray | None = None
    if "embedding" in header:
        tensor, at = _array(body, at, header["embedding"], np.float32)
    width, height, side, policy = header["frame"]
    job.embedding = DistantEmbedding(Frame(width, height, side, ResizePolicy(policy)), tensor)
    return decoded


def pack_found(job: SegmentJob, progress: Progress) -> Header:
    """Everything that was found, with masks as run lengths."""
    found = progress.found
    result, _ = pack_result(job, [], None)
    return result | {
        "progress": [progress.done, progress.of],
        "masks": [mask.rle() for mask in found.masks],
        "areas": found.areas.tolist(),
        "boxes": found.boxes.tolist(),
        "ious": found.predicted_ious.tolist(),
        "stability": found.stability_scores.tolist(),
        "points": found.points.tolist(),
        "crops": found.crops.tolist(),
    }


def unpack_found(header: Mapping[str, Any], job: SegmentJob) -> Progress:
    """The result of :func:`pack_found`, and its job with what a response says of it."""
    unpack_result(header, b"", job)
    found = Candidates(
        tuple(RunMask(document) for document in header["masks"]),
        np.array(header["areas"], np.int64),
        np.array(header["boxes"], np.int64).reshape(-1, 4),
        np.array(header["ious"], np.float32),
        np.array(header["stability"], np.float32),
        np.array(header["points"], np.float64).reshape(-1, 2),
        np.array(header["crops"], np.int64).reshape(-1, 4),
    )
    done, of = header["progress"]
    return Progress(done, of, found)


# -- errors ------------------------------------------------------------------------------------------------------


def pack_error(error: TritonSamError) -> Header:
    """An error by its class and message."""
    return {"error": type(error).__name__, "text": str(error)}


def unpack_error(header: Mapping[str, Any]) -> TritonSamError:
    """The error of :func:`pack_error`."""
    return _ERRORS.get(header["error"], InternalError)(header["text"])


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return memoryview(array.data).cast("B") if array.size else memoryview(b"")


def _array(body: bytes | memoryview, at: int, shape: Sequence[int], dtype: Any) -> tuple[npt.NDArray[Any], int]:
    """(the array at an offset, the offset after it)."""
    count = int(np.prod(shape))
    array = np.frombuffer(body, dtype, count, at).reshape(shape) if count else np.zeros(shape, dtype)
    return array, at + array.nbytes
