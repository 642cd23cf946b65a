"""ConceptPredictor: words and examples by the names of ``Sam3Processor`` in Meta's sam3, asked of a server."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client.concepts import ConceptSegmentation
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.client.user_input import ImageLike
from triton_sam.core.concepts.request import SCORE_THRESHOLD
from triton_sam.core.image_choice import ImageChoice, chosen_bytes
from triton_sam.core.images import EncodedImage
from triton_sam.core.json_values import is_finite_number, short
from triton_sam.errors import ImageExpired, InvalidInput

#: An image and its prompts, and what was found; see :meth:`ConceptPredictor.set_image`.
State = MutableMapping[str, Any]
_PROMPTS = ("text_prompt", "geometric_prompt")
_RESULTS = ("masks", "boxes", "scores")
_IMAGE = ("image", "image_key", "original_width", "original_height")
_NO_LIMIT = 2**62


class ConceptPredictor:
    """Finds all instances of a text, of examples, or of both, and keeps the prompts of each image in a ``state``.

    Scripts that were written for Meta's ``Sam3Processor`` run with it; arrays are numpy's. A state belongs to one
    thread at a time. The image is sent once, and the server keeps its embedding for clicks as well.
    """

    def __init__(
        self,
        url: str | None = None,
        model_type: str = "sam3",
        *,
        confidence_threshold: float = SCORE_THRESHOLD,
        token: str | None = None,
        timeout: float = 120.0,
        client: SAM2TritonClient | None = None,
    ) -> None:
        """
        Args:
            url, model_type, token, timeout: as in :class:`~triton_sam.SAM2TritonClient`.
            confidence_threshold: instances with a higher score are found.
            client: a client to use instead of a new one; it stays open.
        """
        self.confidence_threshold = _threshold(confidence_threshold)
        self._is_own = client is None
        self._client = client or SAM2TritonClient(url, model_type, token=token, timeout=timeout)

    def set_image(self, image: ImageLike, state: State | None = None) -> State:
        """Encodes an image; returns its state, or ``state`` with this image and without prompts.

        Args:
            image: as in :meth:`SAM2TritonClient.set_image`.
        """
        data = chosen_bytes(image, ImageChoice())
        width, height = EncodedImage(data, max_bytes=_NO_LIMIT, max_pixels=_NO_LIMIT).size
        key = self._client.set_image(data)
        if state is None:
            state = {}
        self.reset_all_prompts(state)
        state.update(image=data, image_key=key, original_width=width, original_height=height)
        return state

    def set_text_prompt(self, prompt: str, state: State) -> State:
        """Looks for all instances of a text, which replaces the state's former one; its boxes stay.

        Returns:
            ``state`` with ``masks`` [K,1,H,W] bool and ``boxes`` [K,4] x0, y0, x1, y1, both in original pixels, and
            ``scores`` [K], the highest first. K may be 0.
        """
        return self._find(state, text_prompt=prompt)

    def add_geometric_prompt(self, box: npt.ArrayLike, label: bool, state: State) -> State:
        """Adds a box around an example and looks again, with the state's text or without one.

        Args:
            box: [4] cx, cy, w, h as shares of the image, 0 to 1.
            label: whether it is an example of what is meant, or of what is not.

        Returns:
            As :meth:`set_text_prompt`.
        """
        self._check_image(state)
        corners = _corners(box, state["original_width"], state["original_height"])
        return self._find(state, geometric_prompt=[*state.get("geometric_prompt", ()), (corners, int(bool(label)))])

    def reset_all_prompts(self, state: State) -> None:
        """Removes the prompts of a state and what was found; its image stays."""
        for name in (*_PROMPTS, *_RESULTS):
            state.pop(name, None)

    def set_confidence_threshold(self, threshold: float, state: State | None = None) -> State | None:
        """Sets the threshold for all states; looks again in ``state`` if it has results. Returns ``state``."""
        self.confidence_threshold = _threshold(threshold)
        if state is not None and "boxes" in state:
            return self._find(state)
        return state

    def close(self) -> None:
        """Closes the connection, unless the client was given."""
        if self._is_own:
            self._client.close()

    def __enter__(self) -> ConceptPredictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _find(self, state: State, **prompts: Any) -> State:
        """Asks with the state's prompts and these; they only become the state's if the server answers."""
        self._check_image(state)
        wanted = {name: state[name] for name in _PROMPTS if name in state} | prompts
        examples: Sequence[tuple[list[float], int]] = wanted.get("geometric_prompt", ())
        found = self._ask(
            state,
            wanted.get("text_prompt"),
            [corners for corners, _ in examples] or None,
            [label for _, label in examples] or None,
        )
        state.update(wanted, masks=found.masks.masks[:, None], boxes=found.boxes, scores=found.scores)
        return state

    def _ask(
        self, state: State, text: str | None, exemplars: list[list[float]] | None, labels: list[int] | None
    ) -> ConceptSegmentation:
        for is_last in (False, True):
            try:
                return self._client.segment(
                    image_key=state["image_key"],
                    text=text,
                    exemplars=exemplars,
                    exemplar_labels=labels,
                    score_threshold=self.confidence_threshold,
                )
            except ImageExpired:
                if is_last:
                    raise
                state["image_key"] = self._client.set_image(state["image"])
        raise AssertionError("the second attempt returns or raises")

    def _check_image(self, state: State) -> None:
        if any(name not in state for name in _IMAGE):
            raise InvalidInput("the state has no image: give the one that set_image returns")


def _threshold(value: float) -> float:
    if not is_finite_number(value) or not 0 <= value <= 1:
        raise InvalidInput(f"the confidence threshold is a number from 0 to 1, not {short(value)}")
    return float(value)


def _corners(box: npt.ArrayLike, width: int, height: int) -> list[float]:
    """[4] cx, cy, w, h as shares -> x0, y0, x1, y1 in original pixels; what reaches outside is cut off."""
    try:
        values = np.asarray(box, np.float64).reshape(-1)
    except (TypeError, ValueError):
        values = np.zeros(0)
    if values.shape != (4,) or not np.isfinite(values).all():
        raise InvalidInput(f"a box is cx, cy, w, h as shares of the image, four numbers, not {short(box)}")
    centre, half = values[:2], values[2:] / 2
    if (half <= 0).any() or (centre - half >= 1).any() or (centre + half <= 0).any():
        raise InvalidInput(f"the box {short(values.tolist())} is empty or outside the image: give shares from 0 to 1")
    size = np.array([width, height])
    low, high = ((centre + sign * half).clip(0, 1) * size for sign in (-1, 1))
    return [*low.tolist(), *high.tolist()]
