"""The engine on ONNX Runtime: no torch, runs on a laptop."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image

from triton_sam.engines.base import Decoded, Embedding, FloatArray, select
from triton_sam.engines.priority import run_lowered
from triton_sam.errors import SetupError
from triton_sam.geometry import Frame, ResizePolicy
from triton_sam.prompts import ObjectPrompt
from triton_sam.specs import ModelSpec

_BOX_LABELS = (2.0, 3.0)
#: Longer than the gaps inside a graph, and over before the answer is packed: by default threads spin for tens of
#: milliseconds after a run, on the cores that carry the answer away. Older releases of onnxruntime do not know it.
_SPIN_MICROSECONDS = "300"


def open_session(path: Path, threads: int = 0, *, spinning: bool = False) -> Any:
    """An ONNX Runtime session; SetupError that names the file where it does not load."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_MICROSECONDS)
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions share no base class but this
        raise SetupError(f"{path.name} does not load: {error}") from None


class OnnxEngine:
    """Encoder and decoder sessions of one model."""

    def __init__(self, spec: ModelSpec, encoder: Path, decoder: Path, *, threads: int = 0, max_batch: int = 8) -> None:
        self.spec = spec
        self._max_batch = max_batch
        self._encoder = run_lowered(lambda: open_session(encoder, threads))
        # Its many small steps wait for each other: threads that sleep in between cost 3 ms of a 45 ms click.
        # The encoder's steps are long; spinning there would only take the cores from a click.
        self._decoder = open_session(decoder, threads, spinning=True)
        self._encoder_outputs = [name for name, _ in spec.encoder.outputs]

    def warm_up(self) -> None:
        """Runs the decoder once on nothing, so that the first click is as quick as the others.

        The encoder is left cold: its first run is as slow as every run, and would delay the start by seconds.
        """
        blank = {name: np.zeros(shape, np.float32) for name, shape in self.spec.encoder.outputs}
        frame = Frame(self.spec.side, self.spec.side, self.spec.side, self.spec.resize)
        point = ObjectPrompt(np.zeros((1, 2), np.float32), np.ones(1, np.int32))
        self.decode(Embedding(frame, blank), [point], multimask=False)

    def encode(self, picture: Image.Image) -> Embedding:
        """See :class:`~triton_sam.engines.base.Engine`."""
        frame = Frame(*picture.size, self.spec.side, self.spec.resize)
        pixels = preprocess(picture, frame, self.spec)
        outputs = self._encoder.run(self._encoder_outputs, {self.spec.encoder.image: pixels})
        return Embedding(frame, dict(zip(self._encoder_outputs, outputs, strict=True)))

    def decode(self, embedding: Embedding, prompts: Sequence[ObjectPrompt], *, multimask: bool) -> list[Decoded]:
        """See :class:`~triton_sam.engines.base.Engine`.

        Prompts are batched only with their like (as many points, mask or none): padding with not-a-point tokens
        would change the masks.
        """
        answers: list[Decoded | None] = [None] * len(prompts)
        groups: dict[Hashable, list[int]] = {}
        for index, prompt in enumerate(prompts):
            groups.setdefault(_signature(prompt), []).append(index)
        for indices in groups.values():
            for start in range(0, len(indices), self._max_batch):
                batch = indices[start : start + self._max_batch]
                results = self._run(embedding, [prompts[index] for index in batch], multimask)
                for index, decoded in zip(batch, results, strict=True):
                    answers[index] = select(decoded, multimask=multimask)
        return [answer for answer in answers if answer is not None]

    def _run(self, embedding: Embedding, prompts: Sequence[ObjectPrompt], multimask: bool) -> list[Decoded]:
        names = self.spec.decoder
        coords, labels = zip(*(model_points(prompt, embedding.frame) for prompt in prompts), strict=True)
        masks = np.zeros((len(prompts), 1, names.mask_side, names.mask_side), np.float32)
        has_mask = prompts[0].mask_input is not None
        if has_mask:
            for slot, prompt in zip(masks, prompts, strict=True):
                assert prompt.mask_input is not None  # the batch shares one signature
                np.clip(prompt.mask_input, -names.mask_clip, names.mask_clip, out=slot[0])
        feeds = {
            **embedding.tensors,
            names.points: np.stack(coords),
            names.labels: np.stack(labels),
            names.mask: masks,
            names.mask_flag: np.array([has_mask], np.float32),
        }
        if names.multimask is not None:
            feeds[names.multimask] = np.array([multimask], np.float32)
        logits, scores = self._decoder.run([names.masks, names.scores], feeds)
        return [Decoded(*pair) for pair in zip(logits, scores, strict=True)]


def preprocess(picture: Image.Image, frame: Frame, spec: ModelSpec) -> FloatArray:
    """A picture, mode RGB -> [1,3,side,side] float32 as the encoder takes it.

    Pillow's bilinear filter widens when it shrinks an image, as the reference's antialiased resize does.
    """
    resized = np.asarray(picture.resize(frame.resized, Image.Resampling.BILINEAR))
    planes: npt.NDArray[np.float32] = np.ascontiguousarray(resized.transpose(2, 0, 1), dtype=np.float32)
    mean = np.array(spec.encoder.mean or (0.0, 0.0, 0.0), np.float32)[:, None, None]
    std = np.array(spec.encoder.std or (1.0, 1.0, 1.0), np.float32)[:, None, None]
    planes *= 1.0 / (255.0 * std)  # two passes over 12 MB instead of three
    planes -= mean / std
    if frame.policy is ResizePolicy.PAD:
        # The reference pads after it has normalised; a graph that normalises inside needs the colour that gives zero.
        square = np.empty((3, frame.side, frame.side), np.float32)
        square[:] = np.array(spec.encoder.padding, np.float32)[:, None, None]
        square[:, : planes.shape[1], : planes.shape[2]] = planes
        planes = square
    return planes[None]


def model_points(prompt: ObjectPrompt, frame: Frame) -> tuple[FloatArray, FloatArray]:
    """One object's prompt -> ([P,2] model pixels, [P] labels); a box's corners come first, as in the reference."""
    coords, labels = [prompt.points], [prompt.labels.astype(np.float32)]
    if prompt.box is not None:
        coords.insert(0, prompt.box.reshape(2, 2))
        labels.insert(0, np.array(_BOX_LABELS, np.float32))
    return frame.to_model(np.concatenate(coords)), np.concatenate(labels)


def _signature(prompt: ObjectPrompt) -> Hashable:
    return len(prompt.points), prompt.box is not None, prompt.mask_input is not None
