"""Finds the instances of concepts on ONNX Runtime, without torch."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from triton_sam.core.concepts.selection import pixel_boxes, select, square_boxes
from triton_sam.core.concepts.traits import ConceptTraits
from triton_sam.engines.base import Decoded, FloatArray, HostEmbedding
from triton_sam.engines.concepts import ConceptRow, Instances
from triton_sam.engines.onnx_values import DeviceEmbedding
from triton_sam.engines.tokenizing import TextTokenizer
from triton_sam.errors import InvalidInput
from triton_sam.models.specs import DETECTOR_FILE, TEXT_ENCODER_FILE, TOKENIZER_FILE

#: The label of a box that is only there to fill up.
_PADDING = -10
#: Texts whose features are kept: 32 kB each at full size.
_TEXTS_KEPT = 256
#: Graphs up to this size are opened at the start. Larger ones would take memory and seconds of people who only click.
_SMALL_BYTES = 256 * 1024 * 1024
_OUTPUTS = ["pred_logits", "presence_logits", "pred_boxes", "pred_masks"]
_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    """What was read: [T,C] features, [T] 1 where a token counts, and milliseconds; 0 if it had been read before."""

    features: FloatArray
    mask: _Integers
    milliseconds: float = 0.0


class OnnxConcepts:
    """The text encoder and the detector of a model: the part of an engine that finds concepts."""

    def __init__(self, traits: ConceptTraits, folder: Path, open_part: Callable[[Path], Any], rows: int) -> None:
        """
        Args:
            folder: with the graphs and the tokenizer.
            open_part: opens the session of a graph.
            rows: of one run of the detector at most.
        """
        self._traits, self._folder, self._open, self._rows = traits, folder, open_part, rows
        self._tokenizer = TextTokenizer(folder / TOKENIZER_FILE, traits.tokens)
        self._known: OrderedDict[str, _Text] = OrderedDict()

    @cached_property
    def _text_encoder(self) -> Any:
        return self._open(self._folder / TEXT_ENCODER_FILE)

    @cached_property
    def _detector(self) -> Any:
        return self._open(self._folder / DETECTOR_FILE)

    def warm_up(self) -> None:
        """Opens small graphs, and runs them once."""
        files = [self._folder / name for name in (TEXT_ENCODER_FILE, DETECTOR_FILE)]
        if not all(file.is_file() and file.stat().st_size <= _SMALL_BYTES for file in files):
            return
        traits = self._traits
        blank = _Text(np.zeros((traits.tokens, traits.text_width), np.float32), np.ones(traits.tokens, np.int64))
        none = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
        _ = self._text_encoder
        self._run(np.zeros((1, traits.channels, traits.side, traits.side), np.float32), [blank], [none])

    def check_text(self, text: str) -> None:
        """See :class:`~triton_sam.engines.concepts.ConceptEngine`."""
        if text not in self._known:
            self._tokenizer.encode(text)

    def find(self, rows: Sequence[ConceptRow]) -> list[Instances]:
        """Rows of any images, in order; those of one image go through the detector together."""
        texts = self._read([row.prompt.words for row in rows])
        found: list[Instances | None] = [None] * len(rows)
        images: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            images.setdefault(id(row.embedding), []).append(index)
        for indices in images.values():
            for start in range(0, len(indices), self._rows):
                batch = indices[start : start + self._rows]
                results = self._detect([rows[index] for index in batch], [texts[index] for index in batch])
                for index, instances in zip(batch, results, strict=True):
                    found[index] = instances
        return [instances for instances in found if instances is not None]

    def _read(self, texts: Sequence[str]) -> list[_Text]:
        """The features of texts, in order; new ones are read together."""
        begun = time.perf_counter()
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        read: dict[str, _Text] = {}
        if new:
            ids, masks = (np.stack(part) for part in zip(*map(self._tokenizer.encode, new), strict=True))
            (features,) = self._text_encoder.run(["text_features"], {"input_ids": ids, "attention_mask": masks})
            milliseconds = 1000 * (time.perf_counter() - begun) / len(new)
            for text, own, mask in zip(new, features, masks, strict=True):
                read[text] = _Text(own, mask, milliseconds)
                self._known[text] = _Text(own, mask)
        for text in texts:
            read.setdefault(text, self._known[text])
            self._known.move_to_end(text)
        while len(self._known) > _TEXTS_KEPT:
            self._known.popitem(last=False)
        return [read[text] for text in texts]

    def _detect(self, rows: Sequence[ConceptRow], texts: Sequence[_Text]) -> list[Instances]:
        """Rows of one image."""
        embedding = rows[0].embedding
        assert isinstance(embedding, HostEmbedding | DeviceEmbedding)  # an engine gets only embeddings that it made
        frame = embedding.frame
        exemplars = [(square_boxes(row.prompt.boxes, frame), row.prompt.labels) for row in rows]
        tensors = embedding.values if isinstance(embedding, DeviceEmbedding) else embedding.tensors
        features = tensors.get(self._traits.features)
        if features is None:
            raise InvalidInput("an embedding that was sent has nothing for words: send the image or its key")
        logits, presences, boxes, masks = self._run(features, texts, exemplars)
        results = []
        for index, (row, text) in enumerate(zip(rows, texts, strict=True)):
            chosen = select(logits[index], float(presences[index, 0]), row.threshold, row.most)
            results.append(
                Instances(
                    chosen.presence,
                    chosen.found,
                    pixel_boxes(boxes[index][chosen.queries], frame),
                    Decoded(chosen.scores, masks[index][chosen.queries]),
                    text.milliseconds,
                )
            )
        return results

    def _run(
        self, features: Any, texts: Sequence[_Text], exemplars: Sequence[tuple[FloatArray, npt.NDArray[Any]]]
    ) -> list[FloatArray]:
        """The detector's outputs, in order.

        Args:
            features: [1,C,g,g] of the image, as an array or as a value in the memory of a device.
            exemplars: for each row [E,4] cx, cy, w, h in 0..1, and [E] labels.
        """
        most = max(len(labels) for _, labels in exemplars)
        boxes = np.zeros((len(texts), most, 4), np.float32)
        labels = np.full((len(texts), most), _PADDING, np.int64)
        for index, (own, own_labels) in enumerate(exemplars):
            boxes[index, : len(own)], labels[index, : len(own)] = own, own_labels
        feeds: dict[str, npt.NDArray[Any]] = {
            "text_features": np.stack([text.features for text in texts]),
            "text_mask": np.stack([text.mask for text in texts]),
            "boxes": boxes,
            "box_labels": labels,
        }
        if isinstance(features, np.ndarray):
            outputs: list[FloatArray] = self._detector.run(_OUTPUTS, {self._traits.features: features, **feeds})
            return outputs
        sent = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        answers = self._detector.run_with_ort_values(_OUTPUTS, {self._traits.features: features, **sent})
        return [answer.numpy() for answer in answers]
