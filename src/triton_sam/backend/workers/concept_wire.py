"""A request for concepts and what was found as headers of messages between a Triton process and a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from triton_sam.core.concepts.request import ConceptPrompt, ConceptRequest
from triton_sam.engines.base import Decoded
from triton_sam.engines.concepts import Instances

Header = dict[str, Any]


def pack_concepts(asked: ConceptRequest) -> Header:
    """A request with its exemplars."""
    return {
        "concepts": [[concept.text, concept.boxes.tolist(), concept.labels.tolist()] for concept in asked.concepts],
        "threshold": asked.score_threshold,
        "most": asked.most,
    }


def unpack_concepts(header: Mapping[str, Any]) -> ConceptRequest:
    """The request of :func:`pack_concepts`."""
    concepts = (
        ConceptPrompt(text, np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int32))
        for text, boxes, labels in header["concepts"]
    )
    return ConceptRequest(tuple(concepts), header["threshold"], header["most"])


def pack_instances(found: Sequence[Instances]) -> list[list[Any]]:
    """What was found of each concept, without the masks and scores, which are packed as those of clicks."""
    return [[instances.presence, instances.found, instances.boxes.tolist()] for instances in found]


def unpack_instances(header: Sequence[Sequence[Any]], decoded: Sequence[Decoded]) -> tuple[Instances, ...]:
    """What :func:`pack_instances` was given."""
    return tuple(
        Instances(presence, found, np.array(boxes, np.float32).reshape(-1, 4), masks)
        for (presence, found, boxes), masks in zip(header, decoded, strict=True)
    )
