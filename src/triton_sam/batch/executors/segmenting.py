"""One image on one server: its prompts in as few requests as the server allows, and its masks as records."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from triton_sam.batch.records import Item, ItemPrompt, ItemResult, MaskRecord, SegmentOptions, WordOptions, Work
from triton_sam.client import wire
from triton_sam.client.concepts import concept_request, most_texts, not_sent
from triton_sam.client.core import ClickRequest, ClientCore, ImageFile, not_served, same_model, segment_request
from triton_sam.client.endpoint import Endpoint
from triton_sam.client.everything import EverythingRun
from triton_sam.client.link import ModelLink
from triton_sam.client.transport import Transport
from triton_sam.core.rle import area_and_bbox
from triton_sam.errors import ImageExpired, InternalError, InvalidInput, NotFound, TooLarge, Unavailable
from triton_sam.settings import get_settings

log = logging.getLogger(__name__)

#: bytes of an image file -> (width, height), upright.
SizeOf = Callable[[bytes], tuple[int, int]]
#: Called with ``timings_ms`` of each answer.
OnTimings = Callable[[Mapping[str, float]], object]

#: Marks every request, so that the server serves people's clicks first. Servers that do not know it ignore it.
_PARAMETERS = {"background": True}
_HEALTH_SECONDS = 10.0
_EXTRA = ("stability_score", "point_coords", "crop_box")


def image_file(data: bytes) -> ImageFile:
    """An image with the header by which proxies route it. Hashes the data: call it once per image."""
    return ImageFile(data, wire.image_headers(data))


def digest_of(image: ImageFile) -> str:
    """SHA-256 of an image's bytes, in hexadecimal."""
    return image.headers[wire.IMAGE_HEADER]


class ModelServer:
    """A model on one server: Triton or the service. Threads may share it; each has its own connection."""

    def __init__(
        self,
        url: str | None,
        model: str,
        *,
        token: str | None = None,
        timeout: float = 120.0,
        transport: Transport | None = None,
    ) -> None:
        """
        Args:
            url, token: as for the clients.
            model: Triton name or catalogue id.
            transport: replaces the network, for tests.
        """
        if timeout <= 0:
            raise InvalidInput("timeout must be above 0")
        endpoint = Endpoint(url, timeout, None, token)
        self.address = endpoint.address.target
        self.told_of_missing = False
        # Without repetitions: the pace decides when a refused request is sent again.
        self._core = ClientCore(model, retries=0, parameters=_PARAMETERS)
        self._link = ModelLink(transport or endpoint.transport(), self._core)
        health = transport or Endpoint(url, min(timeout, _HEALTH_SECONDS), None, token).transport()
        self._health = ModelLink(health, self._core)

    def ask(self, inputs: wire.Outputs, headers: Mapping[str, str]) -> Mapping[str, Any]:
        """Sends one request; returns its ``result_json``."""
        outputs = self._link.run(self._core.infer(inputs, ("result_json",), headers=headers))
        try:
            document = json.loads(wire.text_of(outputs, "result_json"))
        except (LookupError, ValueError):
            document = None
        if not isinstance(document, dict):
            raise InternalError("the server's masks cannot be read: it may be of another version")
        model = self._core.model_type
        if ":" in model and not same_model(document.get("model"), model):  # the name now stands for another model
            raise NotFound(not_served(model, [str(document.get("model"))], model))
        return document

    def check(self) -> None:
        """Asks whether the server could serve the model now, without work for it; raises the reason if not."""
        name = self._health.name()
        if not self._health.transport.is_ready(name):
            self._health.transport.parameters(name)  # says why
            raise Unavailable(f"{name} is not ready at {self.address}: it may be starting")

    def close(self) -> None:
        """Closes this thread's connections; those of other threads close when they end."""
        self._link.transport.close()
        if self._health.transport is not self._link.transport:
            self._health.transport.close()


def check_options(options: SegmentOptions) -> None:
    """InvalidInput for options that no server would take, before any image is read."""
    if options.everything is not None:
        if options.clean is not None:
            raise InvalidInput("clean does not go with everything mode: use its option min_mask_region_area")
        EverythingRun(options.everything, "coco_rle", None)
    elif options.words is not None:
        for _ in _word_requests(options.words, options.clean, (1, 1)):
            pass  # each is checked
    elif options.clean is not None:
        segment_request([[0.0, 0.0]], [1], None, None, multimask=False, form="rle", clean=options.clean)


def needs_server(work: Work, options: SegmentOptions) -> bool:
    """Whether there is anything to ask about an image."""
    return options.everything is not None or options.words is not None or bool(work.prompts)


def without_masks(item: Item, size: tuple[int, int]) -> ItemResult:
    """The result of an image without prompts."""
    return ItemResult(item, *size, ())


def segment(
    work: Work,
    image: ImageFile,
    options: SegmentOptions,
    server: ModelServer,
    *,
    size: tuple[int, int],
    on_timings: OnTimings | None = None,
) -> ItemResult:
    """The masks of an image, in the order of its prompts. Raises what the server answers instead.

    Args:
        size: width and height of the image, upright.
    """
    if not needs_server(work, options):
        return without_masks(work.item, size)
    begun = time.perf_counter()
    asked = _Conversation(server, image, on_timings)
    if options.everything is not None:
        run = EverythingRun(options.everything, "coco_rle", None)
        masks = _read(_everything_masks, asked.ask(run.request))
    elif options.words is not None:
        masks = []
        for first, request in _word_requests(options.words, options.clean, size):
            found = asked.ask(replace(request, needs_pixels=True))
            masks += _read(_word_masks, found, first)
            _warn_of_missing(found, options.words, work.item, server)
    else:
        masks = []
        at = 0
        for chunk in _chunks(work.prompts, size):
            masks += _prompted(asked, chunk, size, options.clean, at)
            at += len(chunk)
    document = asked.last
    seconds = time.perf_counter() - begun
    width, height = int(document.get("width", size[0])), int(document.get("height", size[1]))
    return ItemResult(work.item, width, height, tuple(masks), str(document.get("model", "")), seconds)


class _Conversation:
    """The requests about one image. The first has its pixels, the others its key."""

    def __init__(self, server: ModelServer, image: ImageFile, on_timings: OnTimings | None) -> None:
        self.last: Mapping[str, Any] = {}
        self._server = server
        self._image = image
        self._on_timings = on_timings
        self._key: str | None = None

    def ask(self, request: ClickRequest) -> Mapping[str, Any]:
        self.last = self._ask(request)
        self._key = str(self.last.get("image_key", "")) or None
        if self._on_timings is not None:
            timings = self.last.get("timings_ms")
            self._on_timings(timings if isinstance(timings, Mapping) else {})
        return self.last

    def _ask(self, request: ClickRequest) -> Mapping[str, Any]:
        if self._key is not None:
            try:
                return self._server.ask(wire.click_inputs(self._key, request.document), self._image.headers)
            except ImageExpired:
                pass
        return self._server.ask(wire.prompt_inputs(self._image.data, request.document), self._image.headers)


def _word_requests(words: WordOptions, clean: int | None, size: tuple[int, int]) -> Iterator[tuple[int, ClickRequest]]:
    """(number of its first text, request): as many texts in each as leave enough room for the instances of all."""
    most = most_texts(size, words.max_instances)
    for first in range(0, len(words.texts), most):
        texts = list(words.texts[first : first + most])
        limits = {"score_threshold": words.score_threshold, "max_instances": words.max_instances}
        yield first, concept_request(texts, **limits, form="rle", clean=clean)  # type: ignore[arg-type]


def _warn_of_missing(document: Mapping[str, Any], words: WordOptions, item: Item, server: ModelServer) -> None:
    """Warns once a server of instances that it has found and not sent, unless that was wanted."""
    missing = None if words.max_instances is not None or server.told_of_missing else not_sent(document)
    if missing is not None:
        server.told_of_missing = True
        log.warning("%s: %s %s; so it may be with other images", item.name, server.address, missing)


def _chunks(prompts: Sequence[ItemPrompt], size: tuple[int, int]) -> Iterable[Sequence[ItemPrompt]]:
    """Prompts in groups that fit into one request."""
    settings = get_settings()
    pixels = max(1, size[0] * size[1])
    most = max(1, min(settings.max_objects, settings.max_answer_pixels // pixels))
    return (prompts[at : at + most] for at in range(0, len(prompts), most))


def _prompted(
    asked: _Conversation, prompts: Sequence[ItemPrompt], size: tuple[int, int], clean: int | None, first: int
) -> list[MaskRecord]:
    """The masks of one request's prompts.

    Args:
        first: number of the first of them among the image's.
    """
    entries = [_entry(prompt, size) for prompt in prompts]
    try:
        request = segment_request(None, None, None, None, objects=entries, multimask=False, form="rle", clean=clean)
        found = _read(_prompted_masks, asked.ask(replace(request, needs_pixels=True)), prompts)
    except InvalidInput as error:
        if first and not isinstance(error, TooLarge):  # the server counts from the request's first
            raise InvalidInput(f"of the objects from {first} on: {error}") from None
        raise
    if len(found) != len(prompts):
        raise InternalError(f"the server has sent {len(found)} masks for {len(prompts)} prompts")
    return found


def _entry(prompt: ItemPrompt, size: tuple[int, int]) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if prompt.points:
        entry |= {"points": prompt.points, "labels": prompt.labels}
    if prompt.box is not None:
        entry["box"] = _clipped(prompt.box, size)
    return entry


def _clipped(box: tuple[float, float, float, float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The part of a box that lies in the image: detectors' and rounded boxes reach a little over its edge.

    A box that lies outside is left as it is, and refused.
    """
    (x0, y0, x1, y1), (width, height) = box, size
    if not (x0 < width and y0 < height and x1 > 0 and y1 > 0):
        return box
    return max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height))


# -- records ---------------------------------------------------------------------------------------------------


def _read(read: Callable[..., list[MaskRecord]], document: Mapping[str, Any], *arguments: Any) -> list[MaskRecord]:
    try:
        return read(document, *arguments)
    except (LookupError, TypeError, ValueError, InvalidInput):
        raise InternalError("the server's masks cannot be read: it may be of another version") from None


def _prompted_masks(document: Mapping[str, Any], prompts: Sequence[ItemPrompt]) -> list[MaskRecord]:
    found = {int(entry["object"]): entry for entry in document["masks"]}
    return [
        _record(
            found[index]["data"],
            found[index]["score"],
            annotation_id=prompt.annotation_id,
            category_id=prompt.category_id,
        )
        for index, prompt in enumerate(prompts)
    ]


def _word_masks(document: Mapping[str, Any], first: int) -> list[MaskRecord]:
    """Instances by text, then by falling score; ``first`` is the number of the request's first text."""
    return [
        _record(entry["data"], entry["score"], category_id=first + int(entry["concept"]) + 1)
        for entry in document["masks"]
    ]


def _everything_masks(document: Mapping[str, Any]) -> list[MaskRecord]:
    return [
        _record(entry["segmentation"], entry["predicted_iou"], extra={name: entry[name] for name in _EXTRA})
        for entry in document["masks"]
    ]


def _record(rle: Mapping[str, Any], score: float, **more: Any) -> MaskRecord:
    area, bbox = area_and_bbox(rle)
    segmentation = {"size": [int(side) for side in rle["size"]], "counts": str(rle["counts"])}
    return MaskRecord(segmentation, area, bbox, float(score), **more)
