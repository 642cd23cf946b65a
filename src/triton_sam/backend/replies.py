"""Builds the tensors and JSON of a response from a decoded job. Pure: no Triton here."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from triton_sam.backend.jobs import Needs, SegmentJob
from triton_sam.core import masks
from triton_sam.core.everything.driver import Progress
from triton_sam.core.everything.records import answer_of
from triton_sam.core.geometry import Frame
from triton_sam.core.mask_cleaning import Cleaning, clean_mask
from triton_sam.core.prompts import Prompt
from triton_sam.core.rle import BoolArray
from triton_sam.engines.base import Decoded
from triton_sam.errors import InvalidInput

#: The outputs of a request that lists none. Triton then requests all, and JSON of a million floats is useless.
DEFAULT_OUTPUTS = frozenset({"result_json", "image_key", "scores"})
ALL_OUTPUTS = DEFAULT_OUTPUTS | {"masks", "low_res_logits", "embedding"}
#: Built from a mask's pixels. RLE is too where the engine has made them: else it may be built from the logits.
_PIXEL_FORMS = frozenset({"png", "polygon", "bits", "rle"})


def needs_of(prompt: Prompt, wanted: Set[str]) -> Needs:
    """What a decoder has to return for the outputs in ``wanted``."""
    in_json = prompt.format if "result_json" in wanted else None
    from_pixels = in_json is not None and _is_from_pixels(in_json, prompt.clean)
    # Run lengths go down the columns. If rows are needed anyway, they serve for both.
    columns = in_json == "rle" and prompt.clean is None and "masks" not in wanted
    pixels = "masks" in wanted or (from_pixels and not columns)
    logits = "low_res_logits" in wanted or (in_json is not None and not from_pixels) or not (pixels or columns)
    return Needs(logits, pixels, embedding="embedding" in wanted, columns=columns)


def _is_from_pixels(form: str, clean: Cleaning | None) -> bool:
    """Whether the JSON form of a mask is built from its pixels, not from the logits."""
    return form in _PIXEL_FORMS or clean is not None


def wanted_outputs(requested: Set[str]) -> frozenset[str]:
    """The outputs to build: those requested by name, or the default ones."""
    return DEFAULT_OUTPUTS if set(requested) >= ALL_OUTPUTS else frozenset(requested)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a response says about the model.

    Attributes:
        model_id: of the catalogue.
        version: Triton's version number, as text.
        encoder: the encoder's precision: float32, bfloat16, float16 or 8-bit.
    """

    model_id: str
    version: str
    encoder: str

    def as_json(self) -> dict[str, str]:
        """As in every ``result_json``."""
        return {"model": self.model_id, "model_version": self.version, "encoder": self.encoder}


def build_reply(
    job: SegmentJob, decoded: list[Decoded], info: ModelInfo, wanted: Set[str]
) -> dict[str, npt.NDArray[Any]]:
    """Output name -> array.

    ``scores`` [O,M] and ``low_res_logits`` [O,M,h,w] float32 for O objects with M masks each; ``masks``
    [O*M,H,ceil(W/8)] uint8, packed bits of the full-size masks; ``result_json`` and ``image_key`` [1] bytes.
    """
    started = time.perf_counter()
    outputs: dict[str, npt.NDArray[Any]] = {}
    if "image_key" in wanted:
        outputs["image_key"] = text_tensor(job.image_key)
    if decoded:
        if "scores" in wanted:
            outputs["scores"] = np.stack([answer.scores for answer in decoded])
        if "low_res_logits" in wanted:
            outputs["low_res_logits"] = np.stack([mask_logits(answer) for answer in decoded])
    assert job.embedding is not None  # jobs without one have failed before
    prompt = job.prompt or Prompt((), format="logits")
    entries, packed = mask_entries(decoded, prompt, job.embedding.frame, wanted)
    if packed:
        outputs["masks"] = masks_tensor(decoded, packed, prompt)
    job.mark("answer", started)
    job.timings["total"] = (time.perf_counter() - job.received) * 1e3
    if "result_json" in wanted:
        outputs["result_json"] = text_tensor(_object_masks(json.dumps(result_of(job, info)), entries))
    return outputs


def mask_entries(
    decoded: Sequence[Decoded],
    prompt: Prompt,
    frame: Frame,
    wanted: Set[str],
    before_each: Callable[[], object] = lambda: None,
) -> tuple[list[MaskEntry], list[npt.NDArray[np.uint8]]]:
    """Each mask in its JSON form, and packed, [H,ceil(W/8)]; none of what is not wanted.

    Args:
        before_each: called before each mask is made; what it raises ends the work.
    """
    form, clean = prompt.format, prompt.clean
    needs = needs_of(prompt, wanted)
    # All masks whose pixels are in the tensor have the same text.
    same = json.dumps(_head(form, frame)) if form == "bits" and "masks" in wanted else None
    entries: list[MaskEntry] = []
    packed = []
    for index, answer in enumerate(decoded):
        for which, score in enumerate(answer.scores):
            before_each()
            pixels = _Pixels(answer, which, frame, clean) if needs.pixels else None
            if pixels is not None and "masks" in wanted:
                packed.append(pixels.packed)
            if "result_json" in wanted:
                if same is not None:
                    text = same
                elif form == "rle" and clean is None:
                    text = json.dumps(_rle(answer, which, frame))
                else:
                    logits = None if _is_from_pixels(form, clean) else mask_logits(answer)[which]
                    text = json.dumps(_entry(form, logits, pixels, frame, wanted))
                entries.append(MaskEntry(text, float(score), index))
    return entries, packed


def masks_tensor(
    decoded: Sequence[Decoded], packed: Sequence[npt.NDArray[np.uint8]], prompt: Prompt
) -> npt.NDArray[np.uint8]:
    """K > 0 masks of :func:`mask_entries` as one array, [K,H,ceil(W/8)].

    Those of a single object or concept are one already if nothing was cleaned: megabytes that are not copied.
    """
    if len(decoded) == 1 and decoded[0].packed is not None and prompt.clean is None:
        return decoded[0].packed
    return packed[0][None] if len(packed) == 1 else np.stack(packed)


def build_everything(
    job: SegmentJob, progress: Progress, info: ModelInfo, wanted: Set[str]
) -> dict[str, npt.NDArray[Any]]:
    """Output name -> array, for a request for everything: ``result_json`` and ``image_key`` [1] bytes."""
    assert job.embedding is not None
    assert job.prompt is not None
    started, frame = time.perf_counter(), job.embedding.frame
    answer = answer_of(progress.found, job.prompt.format, frame.width, frame.height)
    job.mark("answer", started)
    job.timings["total"] = (time.perf_counter() - job.received) * 1e3
    outputs = {"result_json": text_tensor(json.dumps({**result_of(job, info), "of": progress.of, **answer}))}
    if "image_key" in wanted:
        outputs["image_key"] = text_tensor(job.image_key)
    return outputs


def refuse_tensors(wanted: Set[str]) -> None:
    """Raises InvalidInput if a request for everything asks for an output that it does not have."""
    tensors = sorted(wanted - DEFAULT_OUTPUTS)
    if tensors:
        raise InvalidInput(f"everything has no {tensors[0]}, it would be too large: request only result_json")


class MaskEntry(NamedTuple):
    """One mask of a response.

    Attributes:
        mask: its JSON form, as text.
        object: which object of the request it belongs to.
    """

    mask: str
    score: float
    object: int

    def as_json(self, name: int) -> str:
        """With its score and the name of its object."""
        return f'{self.mask[:-1]}, "score": {json.dumps(self.score)}, "object": {name}}}'


class _Pixels:
    """One full-size mask, in the form that the engine returned, and in others if they are needed."""

    def __init__(self, answer: Decoded, which: int, frame: Frame, clean: Cleaning | None) -> None:
        self._frame = frame
        self._packed = None if answer.packed is None else answer.packed[which]
        self._full: BoolArray | None = None
        self._logits = mask_logits(answer)[which] if self._packed is None else None
        if clean is not None:
            self._full, self._packed = clean_mask(self.full, clean), None

    @property
    def packed(self) -> npt.NDArray[np.uint8]:
        """[H,ceil(W/8)]."""
        if self._packed is None:
            self._packed = np.packbits(self.full, axis=1)
        return self._packed

    @property
    def full(self) -> BoolArray:
        """[H,W]."""
        if self._full is None:
            if self._logits is not None:
                self._full = masks.full_size(self._logits, self._frame)
            else:
                self._full = masks.unpack_bits(self.packed[None], self._frame.width)[0]
        return self._full


def mask_logits(answer: Decoded) -> npt.NDArray[np.float32]:
    """[M,h,w], which were requested."""
    assert answer.logits is not None  # `needs_of` requests them
    return answer.logits


def _rle(answer: Decoded, which: int, frame: Frame) -> dict[str, Any]:
    """The JSON form of one mask as RLE, from what the engine has made: columns, rows, or else logits.

    In these its outline is followed.
    """
    if answer.columns is not None:
        return masks.columns_rle(answer.columns[which], frame.height)
    if answer.packed is not None:
        return masks.packed_rle(answer.packed[which], frame.width)
    return masks.full_size_rle(mask_logits(answer)[which], frame)


def _head(form: str, frame: Frame) -> dict[str, Any]:
    return {"encoding": form, "width": frame.width, "height": frame.height}


def _entry(
    form: str, logits: npt.NDArray[np.float32] | None, pixels: _Pixels | None, frame: Frame, wanted: Set[str]
) -> dict[str, Any]:
    """The JSON form of one mask, built from its logits if there are any, else from its pixels.

    Data that is also a tensor of the response is not sent twice.
    """
    head = _head(form, frame)
    if logits is None:
        assert pixels is not None
        if form == "bits":
            return head | {"data": base64.b64encode(pixels.packed.tobytes()).decode("ascii")}
        if form == "rle":
            return masks.packed_rle(pixels.packed, frame.width)  # cleaned
        return masks.encode(pixels.full, form)
    head |= {"width": logits.shape[1], "height": logits.shape[0]}
    if "low_res_logits" in wanted:
        return head
    return head | {"data": base64.b64encode(logits.astype("<f4").tobytes()).decode("ascii")}


def result_of(job: SegmentJob, info: ModelInfo) -> Mapping[str, Any]:
    """What ``result_json`` says besides the masks."""
    result: dict[str, Any] = {
        "image_key": job.image_key,
        **info.as_json(),
        "timings_ms": {step: round(spent, 3) for step, spent in job.timings.items()},
    }
    if job.embedding is not None:
        result |= {"width": job.embedding.frame.width, "height": job.embedding.frame.height}
    if job.prompt is not None and job.prompt.clean is not None:
        result["clean"] = job.prompt.clean.as_json()
    return result


def _object_masks(head: str, entries: Sequence[MaskEntry]) -> str:
    """A JSON object with the masks of objects; without them if there are none: the image was only encoded."""
    return with_masks(head, entries, [entry.as_json(entry.object) for entry in entries]) if entries else head


def with_masks(head: str, entries: Sequence[MaskEntry], listed: Sequence[str]) -> str:
    """Adds ``mask`` (the best one), ``score`` and ``masks`` to a JSON object.

    The text of the best mask, which is there twice, is made once: for a click that is most of the response.

    Args:
        listed: each entry as it stands in ``masks``.
    """
    masks_text = f'"masks": [{", ".join(listed)}]}}'
    if not entries:
        return f"{head[:-1]}, {masks_text}"
    best = max(entries, key=lambda entry: entry.score)
    return f'{head[:-1]}, "mask": {best.mask}, "score": {json.dumps(best.score)}, {masks_text}'


def text_tensor(value: str) -> npt.NDArray[Any]:
    """[1] bytes."""
    return np.array([value.encode()], dtype=object)
