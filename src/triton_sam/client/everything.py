"""Everything in an image: the request, its progress, and records as Meta's generators give them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton_sam.client import wire
from triton_sam.client.core import ClickRequest
from triton_sam.client.dispatch import Dispatcher, Ticket
from triton_sam.client.wire import Outputs
from triton_sam.core.everything.options import everything_from
from triton_sam.core.json_values import short
from triton_sam.core.rle import from_rle, runs
from triton_sam.errors import InternalError, InvalidInput, ServerUnreachable

#: COCO's run lengths -> the form of a record's ``segmentation``, by ``output_mode``.
_FORMS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "binary_mask": from_rle,
    "uncompressed_rle": lambda rle: {"size": list(rle["size"]), "counts": runs(rle).tolist()},
    "coco_rle": dict,
}
_KEYS = ("area", "bbox", "predicted_iou", "point_coords", "stability_score", "crop_box")


@dataclass(frozen=True, slots=True)
class EverythingProgress:
    """How far a run is.

    Attributes:
        done, of: points.
        masks: kept so far; later ones may take the place of some.
        found: records that are new, each with an ``id``; ``segmentation`` is COCO's RLE.
        gone: ids of records that were told before and no longer stand.
    """

    done: int
    of: int
    masks: int
    found: Sequence[Mapping[str, Any]] = ()
    gone: Sequence[int] = ()


OnProgress = Callable[[EverythingProgress], object]


class EverythingRun:
    """One request for everything in an image: what is sent, and what its answer means."""

    def __init__(self, options: Mapping[str, Any], output_mode: str, on_progress: OnProgress | None) -> None:
        """InvalidInput for a bad option or mode, before anything is sent."""
        if output_mode not in _FORMS:
            raise InvalidInput(f"output_mode is one of {', '.join(_FORMS)}, not {short(output_mode)}")
        checked = everything_from(dict(options))
        assert checked is not None  # it is not for a mapping
        self._form = _FORMS[output_mode]
        self._on_progress = on_progress
        self._final: Mapping[str, Any] | None = None
        self.request = ClickRequest(
            {"everything": {name: getattr(checked, name) for name in options}, "format": "rle"},
            ("result_json",),
            needs_pixels=checked.crop_n_layers > 0,
            on_message=None if on_progress is None else self.take,
        )

    def take(self, message: Outputs) -> None:
        """Takes a message of the stream, and tells its progress."""
        document = _document(message)
        if document.get("final"):
            self._final = document
            return
        try:
            step = document["progress"]
            progress = EverythingProgress(
                int(step["done"]),
                int(step["of"]),
                int(step["masks"]),
                tuple(document.get("masks", ())),
                tuple(document.get("gone", ())),
            )
        except (LookupError, TypeError, ValueError):
            raise _unreadable() from None
        if self._on_progress is not None:
            self._on_progress(progress)

    async def through(self, dispatcher: Dispatcher, start: Callable[[ClickRequest], Ticket]) -> Outputs | None:
        """Runs it on asyncio; returns what :meth:`records` takes. Progress is told on the caller's loop.

        Args:
            start: starts a request on the dispatcher.
        """
        if self._on_progress is None:
            return await dispatcher.wait(start(self.request))
        messages = dispatcher.follow(lambda put: start(replace(self.request, on_message=put)))
        async with contextlib.aclosing(messages):
            async for message in messages:
                self.take(message)
        return None

    def records(self, outputs: Outputs | None = None) -> list[dict[str, Any]]:
        """The records, with the keys of ``SamAutomaticMaskGenerator``.

        Args:
            outputs: of a request without progress; else all messages must have been taken.
        """
        document = self._final if self._on_progress is not None or outputs is None else _document(outputs)
        if document is None:
            raise ServerUnreachable("the response ended before the masks were complete: try again")
        try:
            return [
                {"segmentation": self._form(record["segmentation"])} | {key: record[key] for key in _KEYS}
                for record in document["masks"]
            ]
        except (LookupError, TypeError, ValueError):
            raise _unreadable() from None


def refuse_both(image: object, image_key: object) -> None:
    """InvalidInput if both are given."""
    if image is not None and image_key is not None:
        raise InvalidInput("give either an image or an image_key, not both")


def _document(outputs: Outputs) -> Mapping[str, Any]:
    try:
        document = json.loads(wire.text_of(outputs, "result_json"))
    except (LookupError, ValueError):
        document = None
    if not isinstance(document, dict):
        raise _unreadable()
    return document


def _unreadable() -> InternalError:
    return InternalError("the server's masks cannot be read: it may be of another version")
