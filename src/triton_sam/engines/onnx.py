"""The engine on ONNX Runtime, without torch: on CPUs, and on GPUs with onnxruntime-gpu."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from triton_sam.core.cpu_features import session_entry
from triton_sam.core.geometry import Frame
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Capacity, Decoded, Embedding, FloatArray, HostEmbedding, Row, select
from triton_sam.engines.concepts import ConceptRow, Instances
from triton_sam.engines.inputs import model_points, preprocess
from triton_sam.engines.onnx_concepts import OnnxConcepts
from triton_sam.engines.onnx_values import DeviceEmbedding
from triton_sam.engines.priority import BESIDE_NICENESS, CLICK_NICENESS, CONCEPT_NICENESS, run_lowered
from triton_sam.engines.readiness import AT_ONCE
from triton_sam.errors import SetupError
from triton_sam.installation import install
from triton_sam.models.specs import ModelSpec

#: Longer than the gaps inside a graph, and over before the response is packed: by default threads spin for tens of
#: milliseconds after a run, on the cores that build the response. Older releases of onnxruntime ignore it.
_SPIN_MICROSECONDS = "300"
#: Concepts of one run of the detector: they share what is computed of the image alone.
_CONCEPTS = 4
_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"


def choose_providers(device: str, *, tensorrt: bool = False) -> tuple[str, ...]:
    """ONNX Runtime's execution providers, best first.

    Args:
        device: "auto" takes a GPU if this onnxruntime supports one here; "cuda" requires it; "cpu" never uses it.
        tensorrt: lets TensorRT build engines of the graphs, which takes minutes at the first load.
    """
    available = onnxruntime.get_available_providers()
    if device == "cuda" and _CUDA not in available:
        raise SetupError(f"this onnxruntime has no CUDA: {install('onnxruntime-gpu')} instead, or use device cpu")
    if tensorrt and _TENSORRT not in available:
        raise SetupError("this onnxruntime has no TensorRT: install it, or unset TRITON_SAM_ONNX_TENSORRT")
    # "Available" means "compiled in": onnxruntime-gpu lists CUDA on every machine, and then fails.
    if device == "cpu" or _CUDA not in available or (device == "auto" and not _has_driver()):
        return (_CPU,)
    return (_TENSORRT, _CUDA, _CPU) if tensorrt else (_CUDA, _CPU)


def _has_driver() -> bool:
    """Whether NVIDIA's driver is present, also inside a container or under WSL."""
    return any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg"))


def open_session(path: Path, threads: int = 0, *, spinning: bool = False, providers: Sequence[str] = (_CPU,)) -> Any:
    """An ONNX Runtime session; SetupError names the file if it does not load."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_MICROSECONDS)
    options.add_session_config_entry(*session_entry())
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # ONNX Runtime's exceptions share no base class but this
        # The fix comes first: ONNX Runtime's messages are long, and callers may cut the end.
        raise SetupError(f"{path.name} does not load: run `triton-sam setup` for the model again ({error})") from None


class OnnxEngine:
    """Encoder and decoder sessions of one model.

    On a GPU embeddings stay in its memory: the encoder's outputs are bound there and passed to the decoder unchanged.
    """

    def __init__(
        self,
        spec: ModelSpec,
        encoder: Path,
        decoder: Path,
        *,
        encoder_numbers: str = "float32",
        threads: int = 0,
        max_batch: int = 8,
        providers: Sequence[str] = (_CPU,),
    ) -> None:
        """A model with concepts has their graphs in the folder of its decoder."""
        self.spec = spec
        self.readiness = AT_ONCE
        self.encoder_numbers = encoder_numbers
        self._device = None if tuple(providers) == (_CPU,) else "cuda"
        on_cpu = self._device is None
        self.capacity = Capacity(rows=max_batch, on_cpu=on_cpu, decodes_beside=on_cpu)
        self._encoder = run_lowered(lambda: open_session(encoder, threads, providers=providers))
        # The decoder's many small steps wait for each other: threads that sleep in between cost 3 ms of a 45 ms click.
        # The encoder's steps are long; spinning there would only take cores from a click.
        self._decoder = run_lowered(
            lambda: open_session(decoder, threads, spinning=True, providers=providers), CLICK_NICENESS
        )
        # Its threads have a priority of their own. It is opened when it is first needed.
        self._open_second = partial(run_lowered, lambda: open_session(decoder, threads), BESIDE_NICENESS)
        self._second: Any = None
        self._embeddings = [name for name, _ in spec.encoder.outputs]
        self._encoder_outputs = self._embeddings
        self._concepts: OnnxConcepts | None = None
        if spec.concepts is not None:
            self._encoder_outputs = [*self._embeddings, spec.concepts.features]
            self.capacity = replace(self.capacity, concepts=True, concept_rows=_CONCEPTS)
            open_part = partial(open_session, threads=threads, providers=providers)
            self._concepts = OnnxConcepts(
                spec.concepts,
                decoder.parent,
                lambda file: run_lowered(partial(open_part, file), CONCEPT_NICENESS),
                self.capacity.concept_rows,
            )

    def warm_up(self) -> None:
        """Runs the decoder once on zeros, so that the first click is as fast as the others.

        The encoder is not warmed up: its first run is as slow as every run, and would delay the start by seconds.
        """
        blank = {name: np.zeros(shape, np.float32) for name, shape in self.spec.encoder.outputs}
        frame = Frame(self.spec.side, self.spec.side, self.spec.side, self.spec.resize)
        point = ObjectPrompt(np.zeros((1, 2), np.float32), np.ones(1, np.int32))
        self.decode([Row(self.adopt(frame, blank), point)])
        if self._concepts is not None:
            self._concepts.warm_up()

    def prepare(self, image: EncodedImage) -> tuple[Frame, FloatArray]:
        """See :class:`~triton_sam.engines.base.Engine`."""
        picture = image.pixels()
        frame = Frame(*picture.size, self.spec.side, self.spec.resize)
        return frame, preprocess(picture, frame, self.spec)

    def encode(self, prepared: Sequence[tuple[Frame, FloatArray]]) -> list[Embedding]:
        """See :class:`~triton_sam.engines.base.Engine`."""
        return [self._encode(frame, pixels) for frame, pixels in prepared]

    def _encode(self, frame: Frame, pixels: FloatArray) -> Embedding:
        if self._device is None:
            outputs = self._encoder.run(self._encoder_outputs, {self.spec.encoder.image: pixels})
            return HostEmbedding(frame, dict(zip(self._encoder_outputs, outputs, strict=True)))
        binding = self._encoder.io_binding()
        binding.bind_cpu_input(self.spec.encoder.image, pixels)
        for name in self._encoder_outputs:
            binding.bind_output(name, self._device)
        self._encoder.run_with_iobinding(binding)
        return DeviceEmbedding(frame, dict(zip(self._encoder_outputs, binding.get_outputs(), strict=True)))

    def adopt(self, frame: Frame, tensors: Mapping[str, FloatArray]) -> Embedding:
        """See :class:`~triton_sam.engines.base.Engine`."""
        if self._device is None:
            return HostEmbedding(frame, dict(tensors))
        make = onnxruntime.OrtValue.ortvalue_from_numpy
        return DeviceEmbedding(frame, {name: make(array, self._device) for name, array in tensors.items()})

    def decode(self, rows: Sequence[Row]) -> list[Decoded]:
        """See :class:`~triton_sam.engines.base.Engine`.

        Only rows of the same image, number of points and kind of prompt are batched: padding with not-a-point tokens
        would change the masks, and rows of several images would have to be copied together, 16 MB each.
        """
        return self._decode(self._decoder, rows)

    def decode_beside(self, rows: Sequence[Row]) -> list[Decoded]:
        """See :class:`~triton_sam.engines.base.YieldingEngine`."""
        if self._second is None:
            self._second = self._open_second()
        return self._decode(self._second, rows)

    def _decode(self, session: Any, rows: Sequence[Row]) -> list[Decoded]:
        answers: list[Decoded | None] = [None] * len(rows)
        groups: dict[Hashable, list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(_signature(row), []).append(index)
        for indices in groups.values():
            for start in range(0, len(indices), self.capacity.rows):
                batch = indices[start : start + self.capacity.rows]
                results = self._run(session, [rows[index] for index in batch])
                for index, decoded in zip(batch, results, strict=True):
                    answers[index] = decoded
        return [answer for answer in answers if answer is not None]

    def begin(self, rows: Sequence[Row]) -> Callable[[], list[Decoded]]:
        """See :class:`~triton_sam.engines.base.Engine`. onnxruntime does not return before the end."""
        decoded = self.decode(rows)
        return lambda: decoded

    def _run(self, session: Any, rows: Sequence[Row]) -> list[Decoded]:
        names = self.spec.decoder
        embedding, multimask = rows[0].embedding, rows[0].multimask
        coords, labels = zip(*(model_points(row.prompt, embedding.frame) for row in rows), strict=True)
        masks = np.zeros((len(rows), 1, names.mask_side, names.mask_side), np.float32)
        has_mask = rows[0].prompt.mask_input is not None
        if has_mask:
            for slot, row in zip(masks, rows, strict=True):
                assert row.prompt.mask_input is not None  # the batch shares one signature
                np.clip(row.prompt.mask_input, -names.mask_clip, names.mask_clip, out=slot[0])
        feeds = {
            names.points: np.stack(coords),
            names.labels: np.stack(labels),
            names.mask: masks,
            names.mask_flag: np.array([has_mask], np.float32),
        }
        if names.multimask is not None:
            feeds[names.multimask] = np.array([multimask], np.float32)
        logits, scores = self._run_decoder(session, embedding, feeds)
        return [select(*pair, multimask=multimask) for pair in zip(logits, scores, strict=True)]

    def check_text(self, text: str) -> None:
        """See :class:`~triton_sam.engines.concepts.ConceptEngine`."""
        assert self._concepts is not None
        self._concepts.check_text(text)

    def begin_concepts(self, rows: Sequence[ConceptRow]) -> Callable[[], list[Instances]]:
        """See :class:`~triton_sam.engines.concepts.ConceptEngine`. onnxruntime does not return before the end."""
        assert self._concepts is not None
        found = self._concepts.find(rows)
        return lambda: found

    def close(self) -> None:
        """See :class:`~triton_sam.engines.base.Engine`: there is nothing to end."""

    def _run_decoder(self, session: Any, embedding: Embedding, feeds: Mapping[str, FloatArray]) -> list[FloatArray]:
        """[logits [B,M,h,w], scores [B,M]]."""
        wanted = [self.spec.decoder.masks, self.spec.decoder.scores]
        if isinstance(embedding, HostEmbedding):
            tensors = {name: embedding.tensors[name] for name in self._embeddings if name in embedding.tensors}
            results: list[FloatArray] = session.run(wanted, {**tensors, **feeds})
            return results
        assert isinstance(embedding, DeviceEmbedding)  # an engine gets only embeddings that it made
        # No I/O binding here: it does not support inputs that have a default.
        sent = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        values = {name: embedding.values[name] for name in self._embeddings if name in embedding.values}
        answers = session.run_with_ort_values(wanted, {**values, **sent})
        return [answer.numpy() for answer in answers]


def _signature(row: Row) -> Hashable:
    prompt = row.prompt
    shape = (len(prompt.points), prompt.box is not None, prompt.mask_input is not None)
    return id(row.embedding), row.multimask, shape
