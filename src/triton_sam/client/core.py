"""What both segmentation clients send, read and decide, without I/O.

Requests, responses, the look-up of a model's name and the decisions on retries are written here once;
``SAM2TritonClient`` and ``SpeculativeSAM2Client`` only carry them out.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client import wire
from triton_sam.client.flows import EncodeAgain, Flow, Infer, ListServed, Pause, ReadParameters
from triton_sam.client.user_input import checked, checked_entry
from triton_sam.client.wire import OnMessage, Outputs
from triton_sam.core.mask_cleaning import cleaning_from
from triton_sam.core.masks import MaskSet
from triton_sam.errors import ImageExpired, InvalidInput, NotFound, Unavailable
from triton_sam.models.catalog import all_ids, present_id
from triton_sam.models.specs import triton_name

Parameters = Mapping[str, str | int | bool]
Prediction = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _JITTER_SECONDS = 0.25, 4.0, 0.25
#: More would overflow a float for a client that retries for hours, and changes nothing above the longest pause.
_MAX_DOUBLINGS = 10


@dataclass(frozen=True, slots=True, eq=False)
class ImageFile:
    """An image as it is sent.

    Attributes:
        headers: sent with every request about the image; see :meth:`ClientCore.image`.
    """

    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ClickRequest:
    """A prompt and the outputs wanted for it; the image's key is added when it is sent.

    Attributes:
        needs_pixels: the image is sent with it instead of its key, if the client has it: servers keep embeddings.
        on_message: the request is followed, and this called with each message.
    """

    document: Mapping[str, Any]
    outputs: tuple[str, ...]
    needs_pixels: bool = False
    on_message: OnMessage | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation:
    """A server's response, with masks at the image's original size.

    Attributes:
        result: ``result_json`` as the server sent it.
        packed: the masks as bits, if they were sent as a tensor.
    """

    result: Mapping[str, Any]
    packed: npt.NDArray[np.uint8] | None = None

    @property
    def masks(self) -> MaskSet:
        """The masks as booleans; from ``format`` bits (the default), png or rle."""
        return wire.mask_set(self.result, self.packed)

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """[N] score of each mask: its predicted IoU; of a concept's instance, instance times presence."""
        return np.array([entry["score"] for entry in self.result["masks"]], np.float32)

    @property
    def encoded(self) -> list[dict[str, Any]]:
        """The masks in the requested format, each with ``score`` and ``object``."""
        return list(self.result["masks"])

    @property
    def timings_ms(self) -> dict[str, float]:
        """Milliseconds that the server spent on each step."""
        return dict(self.result["timings_ms"])


# -- clicks ----------------------------------------------------------------------------------------------------


def refuse_text(text: object) -> None:
    """InvalidInput for a text where low-resolution logits of one object are asked for."""
    if text is not None:
        raise InvalidInput("predict takes points, boxes and masks: a text goes to segment, which finds all instances")


def predict_request(
    points: npt.ArrayLike | None,
    labels: npt.ArrayLike | None,
    box: npt.ArrayLike | None,
    mask_input: npt.ArrayLike | None,
    *,
    multimask: bool,
) -> ClickRequest:
    """The request of ``predict``; InvalidInput for a malformed prompt."""
    prompt = checked(points, labels, box, mask_input)
    document = wire.prompt_document([prompt], multimask=bool(multimask), form="logits")
    return ClickRequest(document, ("low_res_logits", "scores"))


def read_prediction(outputs: Outputs) -> Prediction:
    """The result of ``predict``: logits [1,M,256,256] and scores [1,M].

    Copies, because the arrays must be writable and outlive the transport's buffers.
    """
    return np.array(outputs["low_res_logits"], np.float32), np.array(outputs["scores"], np.float32)


def segment_request(
    points: npt.ArrayLike | None,
    labels: npt.ArrayLike | None,
    box: npt.ArrayLike | None,
    mask_input: npt.ArrayLike | None,
    *,
    objects: Sequence[Mapping[str, Any]] | None = None,
    multimask: bool,
    form: str,
    clean: int | Mapping[str, int] | None = None,
) -> ClickRequest:
    """The request of ``segment``; InvalidInput for a malformed prompt."""
    if objects is not None:
        if any(value is not None for value in (points, labels, box, mask_input)):
            raise InvalidInput("give either one object or a list of objects, not both")
        prompts = [checked_entry(entry, index) for index, entry in enumerate(objects)]
    else:
        prompts = [checked(points, labels, box, mask_input)]
    if not prompts:
        raise InvalidInput("the list of objects is empty: give at least one")
    document = wire.prompt_document(prompts, multimask=multimask, form=form, clean=cleaning_from(clean))
    return ClickRequest(document, ("result_json", "masks") if form == "bits" else ("result_json",))


def read_segmentation(outputs: Outputs) -> Segmentation:
    """The result of ``segment``."""
    return Segmentation(json.loads(wire.text_of(outputs, "result_json")), outputs.get("masks"))


# -- names and retries -----------------------------------------------------------------------------------------


def candidate_names(model_id: str) -> tuple[str, ...]:
    """The Triton names under which a server may serve a model: its own, its family's, those of its other ids.

    ``sam2.1:large`` -> ``sam2.1_large``, ``sam2``.
    """
    generation = model_id.partition(":")[0]
    own, family = triton_name(model_id), generation.partition(".")[0]
    return own, family, *(triton_name(other) for other in all_ids(model_id) if other != model_id)


def same_model(told: object, model_id: str) -> bool:
    """Whether a server's id of a model means the one with this id; either may be an old one."""
    return isinstance(told, str) and present_id(told) == present_id(model_id)


def retry_pause(attempt: int) -> float:
    """Seconds to wait after failed attempt number ``attempt`` (from 1): exponential backoff with jitter."""
    backoff = _FIRST_PAUSE_SECONDS * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS)
    return min(backoff, _LONGEST_PAUSE_SECONDS) + random.uniform(0.0, _JITTER_SECONDS)


def pause_after(error: Unavailable, attempt: int) -> float:
    """As :func:`retry_pause`, but at least as long as the server has asked for."""
    return max(retry_pause(attempt), error.retry_after or 0.0)


def not_served(model: str, served: Sequence[str], model_id: str | None = None) -> str:
    """The message for a model that a server does not serve.

    Args:
        served: names of those that it serves, if it says.
        model_id: the catalogue id with which the model can be set up, if it is known.
    """
    remedy = "choose one of these" if served else "choose a model that it serves"
    if model_id is not None:
        remedy += f", or run `triton-sam setup {model_id}` and `triton-sam serve` there"
    found = f", but {', '.join(served)}" if served else ""
    return f"this server does not serve {model}{found}: {remedy}"


class ClientCore:
    """The operations on one model, as flows of steps (:mod:`~triton_sam.client.flows`).

    Its only state is the name under which the server serves the model. Threads may share it.
    """

    def __init__(
        self,
        model_type: str,
        *,
        retries: int,
        longest_wait: float = math.inf,
        headers: Mapping[str, str] | None = None,
        parameters: Parameters | None = None,
        request_id: Callable[[], str] | None = None,
    ) -> None:
        """
        Args:
            model_type: Triton name of the segmenter, or a catalogue id, which is looked up when it is first needed.
            retries: how often a request is repeated if the server is busy (UNAVAILABLE).
            longest_wait: seconds that all pauses together may take if the server says how long to wait.
            headers: those that the transport sends with every request.
            parameters: sent with every request.
            request_id: makes the id of the next request.
        """
        self.model_type = model_type
        self._retries = retries
        self._longest_wait = longest_wait
        self._adds_image_header = wire.IMAGE_HEADER not in {name.lower() for name in headers or {}}
        self._parameters = dict(parameters or {})
        self._request_id = request_id
        self._is_id = ":" in model_type
        self._name: str | None = None if self._is_id else model_type

    @property
    def known_name(self) -> str | None:
        """The segmenter's Triton name; None if it has to be looked up first."""
        return self._name

    def image(self, data: bytes) -> ImageFile:
        """An image file with the header by which a proxy brings all requests about it to one server.

        Hashes the file: call it once per image. There is no such header if the user sets one.
        """
        return ImageFile(data, wire.image_headers(data) if self._adds_image_header else {})

    def encode(self, image: ImageFile, parameters: Parameters | None = None) -> Flow[str]:
        """Encodes an image; returns its key. For a catalogue id, only from the model with that id."""
        inputs = wire.image_inputs(image.data)
        if not self._is_id:
            outputs = yield from self.infer(inputs, ("image_key",), parameters, image.headers)
            return wire.text_of(outputs, "image_key")
        for _ in range(2):
            outputs = yield from self.infer(inputs, ("image_key", "result_json"), parameters, image.headers)
            if same_model(json.loads(wire.text_of(outputs, "result_json"))["model"], self.model_type):
                return wire.text_of(outputs, "image_key")
            self._name = None  # the server has given this name to another model since the look-up
        raise (yield from self._not_served())

    def click(self, key: str, image: ImageFile | None, request: ClickRequest) -> Flow[Outputs]:
        """Sends a prompt on an encoded image; returns the outputs.

        An expired image is encoded again once. If it expires again at once, the server's cache is too small.

        Args:
            key: the image's key on the server.
            image: None if only the key is known.
        """
        try:
            return (yield from self._click_once(key, image, request))
        except ImageExpired:
            if image is None:
                raise
        key = yield EncodeAgain(key)
        return (yield from self._click_once(key, image, request))

    def _click_once(self, key: str, image: ImageFile | None, request: ClickRequest) -> Flow[Outputs]:
        if image is not None and request.needs_pixels:
            inputs = wire.prompt_inputs(image.data, request.document)
        else:
            inputs = wire.click_inputs(key, request.document)
        headers = None if image is None else image.headers
        return (yield from self.infer(inputs, request.outputs, headers=headers, on_message=request.on_message))

    def infer(
        self,
        inputs: Outputs,
        outputs: Sequence[str],
        parameters: Parameters | None = None,
        headers: Mapping[str, str] | None = None,
        on_message: OnMessage | None = None,
    ) -> Flow[Outputs]:
        """Sends one request, again if the server is busy; ``parameters`` are added to those of every request."""
        request_id = "" if self._request_id is None else self._request_id()
        name = yield from self.name()
        merged = {**self._parameters, **(parameters or {})}
        call = wire.Call(name, inputs, outputs, merged, request_id, headers or {})
        try:
            found: Outputs = yield from self._retrying(Infer(call, on_message))
        except ImageExpired:
            raise
        except NotFound as error:
            unknown = error
        else:
            return found
        raise (yield from self._not_served(unknown))

    def name(self) -> Flow[str]:
        """Finds the segmenter's Triton name; NotFound if the server does not serve an id's model."""
        name = self._name  # once: another thread may reset it meanwhile
        if name is not None:
            return name
        for candidate in candidate_names(self.model_type):
            try:
                parameters = yield from self._retrying(ReadParameters(candidate))
            except NotFound:
                continue
            if same_model(parameters.get("model_id"), self.model_type):
                self._name = candidate
                return candidate
        raise (yield from self._not_served())

    def _retrying(self, step: Infer | ReadParameters) -> Flow[Any]:
        """Repeats a step with growing pauses if the server is busy."""
        waited = 0.0
        for attempt in range(1, self._retries + 1):
            try:
                return (yield step)
            except Unavailable as error:
                pause = pause_after(error, attempt)
                if error.retry_after is not None and waited + pause > self._longest_wait:
                    raise
            waited += pause
            yield Pause(pause)
        return (yield step)

    def _not_served(self, unknown: NotFound | None = None) -> Flow[NotFound]:
        """The error for a model that is not served, with those that are.

        Args:
            unknown: the server's own error, which is used if it does not say what it serves.
        """
        served: list[str] = yield ListServed()
        if not served and unknown is not None:
            return unknown
        return NotFound(not_served(self.model_type, served, self.model_type if self._is_id else None))
