"""The interface of engines that find the instances of concepts, and its data types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from triton_sam.core.concepts.request import ConceptPrompt
from triton_sam.engines.base import Decoded, Embedding, Engine, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ConceptRow:
    """One concept to look for in one image, and the outputs that are needed.

    Attributes:
        prompt: exemplars in original pixels of the embedding's image.
        threshold: instances with a higher score are found.
        most: instances that are returned.
        logits, pixels, columns: as in :class:`~triton_sam.engines.base.Row`.
    """

    embedding: Embedding
    prompt: ConceptPrompt
    threshold: float
    most: int
    logits: bool = True
    pixels: bool = False
    columns: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Instances:
    """What was found of one concept in one image.

    Attributes:
        presence: probability that the concept is in the image at all.
        found: number of instances above the threshold, returned or not.
        boxes: [K,4] float32 x0, y0, x1, y1 in original pixels, of the instances that are returned.
        decoded: their masks and scores, M = K, by falling score.
        text_ms: milliseconds that reading the text took, as far as the engine knows; 0 if its features were cached.
    """

    presence: float
    found: int
    boxes: FloatArray
    decoded: Decoded
    text_ms: float = 0.0


class ConceptEngine(Engine, Protocol):
    """An engine that finds all instances of what words and examples name."""

    def check_text(self, text: str) -> None:
        """Raises InvalidInput for a text that the network cannot read, for example one with too many tokens. Quick."""

    def begin_concepts(self, rows: Sequence[ConceptRow]) -> Callable[[], list[Instances]]:
        """Starts to look for concepts; returns a function that gives the results in order, once.

        Called on one thread. Clicks are decoded at the same time on others, and go first: on a CPU that is for
        the priority of the sessions' threads to see to (``run_lowered``), on a GPU for a stream of its own.

        Args:
            rows: of one image, at most ``capacity.concept_rows``. With ``capacity.overlaps`` the next call may come
                before the result of the last one is taken.
        """
