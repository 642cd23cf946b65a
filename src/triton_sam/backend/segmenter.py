"""The Triton model ``sam1`` / ``sam2`` / ``sam3``: parses requests, schedules them, sends responses.

``execute`` parses, submits and returns None. The response is sent later, through the request's response sender.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils
from PIL import Image

from triton_sam.backend import triton_io
from triton_sam.backend.cache import EmbeddingCache, content_key
from triton_sam.backend.jobs import Needs, QueueLimits, SegmentJob
from triton_sam.backend.metrics import TritonMetrics
from triton_sam.backend.replies import ModelInfo, build_reply, needs_of, wanted_outputs
from triton_sam.backend.scheduler import Scheduler
from triton_sam.core import masks
from triton_sam.core.geometry import Frame
from triton_sam.core.images import EncodedImage, check_size, from_base64
from triton_sam.core.prompts import Prompt, PromptLimits, parse_prompt
from triton_sam.engines.base import Decoded, Embedding
from triton_sam.engines.loading import load_engine
from triton_sam.errors import InternalError, InvalidInput, TritonSamError, Unavailable
from triton_sam.installation import install
from triton_sam.logs import LogRateLimit, about
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import ModelSpec
from triton_sam.repository.model_folders import served_spec
from triton_sam.server.host import SHARED_MEMORY
from triton_sam.server.in_flight import InFlightCounter
from triton_sam.settings import Settings, get_settings

log = logging.getLogger(__name__)
_LONGEST_REASON = 300
_SMALL_RESPONSE = 16 * 1024 * 1024
#: On a GPU a click takes a millisecond: the thread that reads the next one must not wait 5 ms for Python's lock.
_SWITCH_SECONDS = 0.0001


class _TritonReply:
    """Sends the response of one request, and counts the request as answered."""

    def __init__(self, model: TritonPythonModel, request: Any) -> None:
        self._model = model
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._sent = False
        # Only the id is kept: the request would keep its tensors in memory.
        self.request_id = triton_io.request_id_of(request)
        self.wanted = wanted_outputs(set(request.requested_output_names()))

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        outputs = build_reply(job, decoded, self._model.info, self.wanted)
        if "embedding" in self.wanted:
            outputs["embedding"] = self._model.hand_out_embedding(job)
        self.send_arrays(outputs)

    def send_arrays(self, outputs: dict[str, npt.NDArray[Any]]) -> None:
        size = sum(len(array[0]) if array.dtype == object else array.nbytes for array in outputs.values())
        if size > _SMALL_RESPONSE and size > shutil.disk_usage(SHARED_MEMORY).free // 2:
            raise Unavailable(
                f"the response of {size / 1e6:.0f} MB does not fit into shared memory now: request fewer objects"
            )
        tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items()]
        self._send(pb_utils.InferenceResponse(output_tensors=tensors))

    def send_json(self, document: dict[str, Any]) -> None:
        self.send_arrays({"result_json": np.array([json.dumps(document).encode()], dtype=object)})

    def fail(self, error: TritonSamError) -> None:
        self._send(triton_io.refusal(error))

    def is_cancelled(self) -> bool:
        return triton_io.is_cancelled(self._sender)

    def _send(self, response: Any) -> None:
        with self._lock:
            if self._sent:
                return
            self._sent = True
        triton_io.send(self._sender, response)
        self._model.flight.add(-1)


class TritonPythonModel:
    """The class that Triton's Python backend loads: one process per device."""

    spec: ModelSpec
    info: ModelInfo
    flight: InFlightCounter
    _log_limit = LogRateLimit()

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the model. A failure is one sentence in Triton's log."""
        try:
            triton_io.set_up_log(args["model_name"], get_settings())
            self._load(json.loads(args["model_config"]), Path(args["model_repository"]), args)
        except TritonSamError as error:
            raise pb_utils.TritonModelException(str(error)) from None

    def _load(self, config: dict[str, Any], repository: Path, args: dict[str, str]) -> None:
        refuse_numpy_2()
        refuse_several_instances(config)
        settings = get_settings()
        # Our own limit on pixels replaces Pillow's, which remains as a second check at twice the size.
        Image.MAX_IMAGE_PIXELS = settings.max_image_pixels
        parameters = triton_io.parameters_of(config)
        folder = repository / args["model_version"]
        self.spec = served_spec(get_spec(parameters["model_id"]), folder)
        refuse_other_config(config, self.spec)
        self._engine = load_engine(self.spec, folder, settings)
        self.info = ModelInfo(self.spec.id, args["model_version"], self._engine.encoder_numbers)
        if self._engine.capacity.on_cpu:  # on a GPU masks are resized there
            masks.full_size(np.zeros((2, 2), np.float32), Frame(2, 2, 2, self.spec.resize))  # loads OpenCV
        else:
            sys.setswitchinterval(_SWITCH_SECONDS)
        self._settings: Settings = settings
        self._limits = PromptLimits.of(settings, self.spec.decoder.mask_side)
        room = self._engine.capacity.cache_bytes
        self._cache = EmbeddingCache(settings.cache_bytes if room is None else room)
        self._metrics = TritonMetrics(args["model_name"])
        self.flight = InFlightCounter(args["model_name"])
        limits = QueueLimits(
            settings.encode_queue,
            settings.click_queue,
            settings.queue_seconds,
            window=settings.encode_window_ms / 1e3,
        )
        self._scheduler = Scheduler(self._engine, self._cache, self._metrics, limits)

    def execute(self, requests: list[Any]) -> None:
        """Passes every request to the scheduler, or refuses it at once if it is not valid."""
        for request in requests:
            self.flight.add(1)
            reply = _TritonReply(self, request)
            try:
                self._accept(request, reply)
            except TritonSamError as error:
                reply.fail(error)
                if not isinstance(error, Unavailable) and self._log_limit.allow():  # those are counted
                    log.info("refused: %s", str(error)[:_LONGEST_REASON], extra=about(reply.request_id))
            except Exception as error:
                log.exception("a request could not be read", extra=about(reply.request_id))
                reply.fail(InternalError(f"reading the request failed on the server ({type(error).__name__})"))

    def finalize(self) -> None:
        """Finishes all admitted requests."""
        self._scheduler.close()
        self.flight.close()

    def _accept(self, request: Any, reply: _TritonReply) -> None:
        parameters = json.loads(request.parameters() or "{}")
        session = _session(parameters)
        if _flag(parameters, "ping"):
            self._scheduler.ping(lambda: self._answer_ping(reply))
        elif _flag(parameters, "about"):
            reply.send_json(self.info.as_json())
        elif _flag(parameters, "cancel"):
            if session is None:
                raise InvalidInput("a cancel request needs the parameter session_id")
            before, only = _number(parameters, "before"), _number(parameters, "only")
            cancelled = self._scheduler.cancel_session(session, before=before, only=only)
            reply.send_json({"session_id": session, "cancelled": cancelled})
        else:
            self._segment(request, reply, _Turn(session, parameters))

    def _answer_ping(self, reply: _TritonReply) -> None:
        if self._scheduler.alive:
            reply.send_json({"encode_seconds": self._scheduler.encode_seconds})
        else:
            reply.fail(InternalError("a worker has ended"))

    def _segment(self, request: Any, reply: _TritonReply, turn: _Turn) -> None:
        tensors = {tensor.name(): tensor for tensor in request.inputs()}
        prompt = self._prompt(tensors)
        needs = Needs() if prompt is None else needs_of(prompt, reply.wanted)

        def job(key: str, embedding: Embedding | None = None) -> SegmentJob:
            return SegmentJob(
                reply,
                prompt,
                key,
                turn.session,
                turn.latest_wins,
                embedding,
                needs,
                turn.sequence,
                request_id=reply.request_id,
            )

        image = _image_bytes(tensors, self._settings.max_image_bytes)
        sent_embedding = np.array(tensors["embedding"].as_numpy()) if "embedding" in tensors else None
        sent_key = _text(tensors, "image_key")
        given = sum(value is not None for value in (image, sent_embedding, sent_key))
        if given != 1:
            raise InvalidInput(
                "send exactly one of image, image_b64, image_key and embedding"
                + (", not several" if given else ": this request has none")
            )
        if image is not None:
            self._submit_image(job, image, prompt)
        elif sent_key is not None:
            self._submit_cached(job, sent_key, prompt)
        elif sent_embedding is not None:
            self._submit_embedding(job, sent_embedding, prompt)

    def _prompt(self, tensors: Mapping[str, Any]) -> Prompt | None:
        text = _text(tensors, "prompt_json")
        if text is None:
            return None
        prompt = parse_prompt(text, self._limits)
        prompt.check_kinds(self.spec.prompts, self.spec.id)
        return prompt

    def _submit_image(self, job: Callable[[str], SegmentJob], image: bytes, prompt: Prompt | None) -> None:
        encoded = EncodedImage(
            image, max_bytes=self._settings.max_image_bytes, max_pixels=self._settings.max_image_pixels
        )
        if prompt is not None:
            self._check(prompt, *encoded.size)
        key = content_key(self.spec.id, self.info.version, self.info.encoder, image)
        self._metrics.count("cache_hits" if self._cache.get(key) is not None else "cache_misses")
        self._scheduler.submit_image(job(key), encoded)

    def _submit_cached(self, job: Callable[..., SegmentJob], key: str, prompt: Prompt | None) -> None:
        try:
            embedding = self._cache.require(key)
        except TritonSamError:
            self._metrics.count("cache_misses")
            raise
        if prompt is None:
            raise InvalidInput("a request with image_key needs prompt_json: add a prompt")
        self._check(prompt, embedding.frame.width, embedding.frame.height)
        self._scheduler.submit_click(job(key, embedding))
        self._metrics.count("cache_hits")

    def _submit_embedding(
        self, job: Callable[..., SegmentJob], array: npt.NDArray[np.float32], prompt: Prompt | None
    ) -> None:
        if prompt is None:
            raise InvalidInput("a request with an embedding needs prompt_json: add a prompt")
        known = self._cache.find_alias(_embedding_hash(array))
        key, embedding = known if known is not None else ("", self._bare_embedding(array, prompt))
        if prompt.image_size is not None:  # images of one colour share an embedding whatever their size is
            frame = Frame(*prompt.image_size, self.spec.side, self.spec.resize)
            embedding = embedding.framed(frame)
        self._check(prompt, embedding.frame.width, embedding.frame.height)
        self._scheduler.submit_click(job(key, embedding))

    def _check(self, prompt: Prompt, width: int, height: int) -> None:
        """Raises InvalidInput for prompts outside the image, or for more mask pixels than allowed."""
        prompt.check_inside(width, height)
        count = len(prompt.objects) * (self.spec.decoder.masks_per_prompt if prompt.multimask else 1)
        limit = self._settings.max_answer_pixels
        if prompt.format != "logits" and count * width * height > limit:
            raise InvalidInput(
                f"{count} masks of {width} x {height} pixels are too much for one request: {limit:,} pixels in all "
                "are allowed, so send fewer objects at a time, or request logits"
            )

    def _bare_embedding(self, array: npt.NDArray[np.float32], prompt: Prompt) -> Embedding:
        """An embedding that is not in the cache: its high-resolution features are zeros."""
        if prompt.image_size is None:
            raise InvalidInput("this embedding is not known here: add image_size [width, height] to prompt_json")
        outputs = dict(self.spec.encoder.outputs)
        if array.shape != outputs[self.spec.encoder.embedding]:
            wanted = list(outputs[self.spec.encoder.embedding])
            raise InvalidInput(f"the embedding is float32 {wanted}, not {list(array.shape)}")
        if not np.isfinite(array).all():
            raise InvalidInput("the embedding has values that are not finite")
        tensors = {name: np.zeros(shape, np.float32) for name, shape in outputs.items()}
        tensors[self.spec.encoder.embedding] = array
        return self._engine.adopt(Frame(*prompt.image_size, self.spec.side, self.spec.resize), tensors)

    def hand_out_embedding(self, job: SegmentJob) -> npt.NDArray[np.float32]:
        """[1,256,64,64] of a job's image. Its hash is kept, so that a client can send the embedding back."""
        assert job.embedding is not None  # jobs without one have failed before
        array = job.embedding.array(self.spec.encoder.embedding)
        self._cache.add_alias(_embedding_hash(array), job.image_key)
        return array


def refuse_numpy_2() -> None:
    """Raises InternalError for numpy 2, with which the stub returns wrong data."""
    if int(np.__version__.split(".")[0]) >= 2:
        raise InternalError(
            f"numpy {np.__version__} gives silently wrong tensors in this server's backend: {install('numpy<2')}"
        )


def refuse_several_instances(config: dict[str, Any]) -> None:
    """Raises InternalError if a config would split the embedding cache over processes."""
    instances = sum(
        int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in config.get("instance_group", [])
    )
    if instances > 1:
        raise InternalError(
            f"{config['name']} has {instances} instances, which would split its embedding cache: "
            "set instance_group count to 1 (parallelism is a setting of its workers)"
        )


def refuse_other_config(config: dict[str, Any], spec: ModelSpec) -> None:
    """Raises InternalError if a config was written for other graphs: its setup was interrupted."""
    declared = {tensor["name"]: [int(size) for size in tensor["dims"]] for tensor in config.get("output", [])}
    embedding = list(dict(spec.encoder.outputs)[spec.encoder.embedding])
    side = spec.decoder.mask_side
    if declared.get("embedding") != embedding or declared.get("low_res_logits", [])[2:] != [side, side]:
        raise InternalError(
            f"the config of {config['name']} does not fit its newest version: run `triton-sam setup {spec.id}` again"
        )


class _Turn:
    """The session parameters of a request."""

    def __init__(self, session: str | None, parameters: dict[str, Any]) -> None:
        self.session = session
        self.latest_wins = _flag(parameters, "latest_wins")
        self.sequence = _number(parameters, "sequence")
        if self.sequence is not None and session is None:
            raise InvalidInput("the parameter sequence counts the requests of a session: add session_id")


def _session(parameters: dict[str, Any]) -> str | None:
    session = parameters.get("session_id")
    return None if session is None or session == "" else str(session)


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidInput(f"the parameter {name} is true or false, not {value!r}")
    return value


def _number(parameters: dict[str, Any], name: str) -> int | None:
    value = parameters.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidInput(f"the parameter {name} is a number from 0 on, not {value!r}")
    return value


def _text(tensors: Mapping[str, Any], name: str) -> str | None:
    if name not in tensors:
        return None
    array = tensors[name].as_numpy()
    if array.size != 1:
        raise InvalidInput(f"{name} is one string of shape [1], not {array.size} of them")
    value = array.reshape(-1)[0]
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise InvalidInput(f"{name} is not valid UTF-8") from None


def _image_bytes(tensors: Mapping[str, Any], max_bytes: int) -> bytes | None:
    raw = tensors.get("image")
    text = _text(tensors, "image_b64")
    if raw is not None and text is not None:
        raise InvalidInput("send exactly one of image and image_b64, not both")
    if raw is not None:
        array = raw.as_numpy()
        check_size(array.size, max_bytes)
        return bytes(array.tobytes())
    if text is None:
        return None
    check_size(len(text) * 3 // 4, max_bytes)
    return from_base64(text, "image_b64")


def _embedding_hash(array: npt.NDArray[np.float32]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, dtype="<f4").tobytes()).hexdigest()
