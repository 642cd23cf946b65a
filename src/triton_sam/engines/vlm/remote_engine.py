"""The engine for checkpoints with their own generation code, which answers one question at a time: moondream2."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from triton_sam.engines.vlm.base import Ending, Listener, Question
from triton_sam.engines.vlm.crops import Crop
from triton_sam.engines.vlm.pieces import PieceMaker
from triton_sam.engines.vlm.regions import Region, asked_object, box_region, point_region
from triton_sam.models.vlm_specs import Task

#: Encoded images in the cache: users ask several questions about an image.
_CACHED_IMAGES = 4


class _ClientLeft(Exception):
    """Raised inside the checkpoint's code if nobody listens any more."""


class RemoteCodeEngine:
    """moondream2's interface: ``encode_image`` once, then ``query`` with ``stream=True``, ``detect`` or ``point``."""

    batch = 1
    concurrent = False

    def __init__(self, network: Any) -> None:
        self._network = network
        self.nbytes = sum(tensor.numel() * tensor.element_size() for tensor in network.parameters())
        self._encoded: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._steps = 0
        self._check_listener: Callable[[], None] = lambda: None
        self._inner = getattr(network, "model", network)
        self._counts_steps = hasattr(self._inner, "_decode_one_tok")
        if self._counts_steps:
            self._inner._decode_one_tok = self._counting(self._inner._decode_one_tok)

    def _counting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Counts generated tokens: the code does not report them, but calls this step after each.

        Objects and points do not come one by one, so a client that leaves is noticed here too.
        """

        def counted(*arguments: Any, **named: Any) -> Any:
            self._steps += 1
            self._check_listener()
            return step(*arguments, **named)

        return counted

    def prepare(self, question: Question) -> Question:
        """Only raises InvalidInput for a conversation: the network's own code reads text and pixels."""
        question.require_one_message()
        return question

    def answer(self, prepared: Sequence[Question], listeners: Sequence[Listener]) -> None:
        """Answers one question after the other."""
        for question, listener in zip(prepared, listeners, strict=True):
            with self._lock, torch.inference_mode():
                if question.task is Task.ANSWER:
                    self._answer(question, listener)
                else:
                    self._find(question, listener)

    def _find(self, question: Question, listener: Listener) -> None:
        """Boxes, or points, of the object that the question names; there is no text."""

        def check() -> None:
            if listener.is_gone():
                raise _ClientLeft

        name = asked_object(question.text)
        image = self._image(question)
        self._steps, self._check_listener = 0, check
        try:
            if question.task is Task.POINT:
                found = self._network.point(image, name)["points"]
            else:
                found = self._network.detect(image, name)["objects"]
        except _ClientLeft:
            return
        finally:
            self._check_listener = lambda: None
        regions = _regions(name, found, Crop.whole(question.size))
        listener.end(Ending("stop", self._count(name), self._steps, regions=regions))

    def _answer(self, question: Question, listener: Listener) -> None:
        options = question.options
        if options.temperature > 0:  # its code uses torch's global generator
            torch.manual_seed(options.seed if options.seed is not None else torch.seed())
        settings = {
            "max_tokens": options.max_new_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
        }
        self._steps = 0
        parts = self._network.query(self._image(question), question.text, stream=True, settings=settings)["answer"]
        maker = PieceMaker(lambda tokens: "", options.stop, without_tags=False)
        said: list[str] = []
        for part in parts:
            if listener.is_gone():
                parts.close()
                return
            said.append(part)
            piece = maker.add_text(part)
            if maker.stopped:
                parts.close()
            if piece:
                listener.piece(piece)
        last = maker.end()
        if last:
            listener.piece(last)
        spoken = self._steps if self._counts_steps else self._count("".join(said))
        cut = not maker.stopped and spoken >= options.max_new_tokens
        listener.end(Ending("length" if cut else "stop", self._count(question.text), spoken))

    def _image(self, question: Question) -> Any:
        encoded = self._encoded.pop(question.image_key, None)
        if encoded is None:
            encoded = self._network.encode_image(question.image)
        self._encoded[question.image_key] = encoded
        while len(self._encoded) > _CACHED_IMAGES:
            self._encoded.popitem(last=False)
        return encoded

    def _count(self, text: str) -> int:
        """Tokens of a text, by the network's own tokenizer; words if it has none."""
        tokenizer = getattr(self._inner, "tokenizer", None)
        return len(tokenizer.encode(text).ids) if tokenizer is not None else len(text.split())


def _regions(label: str, found: Sequence[Mapping[str, float]], crop: Crop) -> list[Region]:
    """The model's numbers are shares of the whole image; a box may reach over its edge."""
    regions: list[Region] = []
    for entry in found:
        if "x_min" in entry:
            regions += box_region(label, [entry[name] for name in ("x_min", "y_min", "x_max", "y_max")], crop)
        else:
            regions += point_region(label, entry["x"], entry["y"], crop)
    return regions
