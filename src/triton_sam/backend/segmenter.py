"""The Triton model ``sam1`` / ``sam2`` / ``sam3``: parses requests and sends responses.

``execute`` parses, submits and returns None. The response is sent later, through the request's response sender. A
:class:`~triton_sam.backend.core.SegmenterCore` computes it, in this process or in one worker process for each device.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from triton_sam.backend import triton_io
from triton_sam.backend.cache import content_key
from triton_sam.backend.concept_replies import build_concepts
from triton_sam.backend.core import LocalCore, SegmenterCore, Source
from triton_sam.backend.jobs import Needs, SegmentJob
from triton_sam.backend.masks_memory import handed_over, place_of
from triton_sam.backend.metrics import TritonMetrics, WorkerMetrics
from triton_sam.backend.parent_watch import end_after_parent
from triton_sam.backend.replies import build_everything, build_reply, needs_of, refuse_tensors, wanted_outputs
from triton_sam.backend.requests import Turn, flag, image_bytes, number, session_of, text_of, text_parameter
from triton_sam.backend.video.answers import STATE_OUTPUT, build_video
from triton_sam.backend.video.requests import StepReader
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.remote_core import WorkerCore
from triton_sam.core.everything.driver import Progress
from triton_sam.core.masks_memory import Place
from triton_sam.core.prompts import Prompt, PromptLimits, prompt_document, prompt_from_mapping
from triton_sam.engines.base import Decoded
from triton_sam.engines.device_list import devices_of, use_device
from triton_sam.errors import InternalError, InvalidInput, TritonSamError, Unavailable
from triton_sam.installation import install
from triton_sam.logs import LogRateLimit, about, set_up_model_log
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import ModelSpec
from triton_sam.repository.model_folders import served_spec
from triton_sam.server.host import SHARED_MEMORY
from triton_sam.server.in_flight import InFlightCounter
from triton_sam.settings import Settings, get_settings

log = logging.getLogger(__name__)
_LONGEST_REASON = 300
#: Long enough for Triton to learn that this process is initialised.
_METRICS_DELAY = 1.0
_SMALL_RESPONSE = 16 * 1024 * 1024


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
        #: Where the client wants large masks.
        self.masks_place: Place | None = None

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        build = build_concepts if job.wants_concepts else build_reply if job.video is None else build_video
        outputs = build(job, decoded, self._model.core.info, self.wanted)
        if "embedding" in self.wanted:
            outputs["embedding"] = self._model.core.embedding_of(job)
        if self.masks_place is not None and "masks" in outputs:
            outputs["masks"] = handed_over(outputs["masks"], self.masks_place)
        self.send_arrays(outputs)

    def found(self, job: SegmentJob, progress: Progress) -> None:
        self.send_arrays(build_everything(job, progress, self._model.core.info, self.wanted))

    def flush(self) -> None:
        """Triton takes each response at once."""

    def send_arrays(self, outputs: dict[str, npt.NDArray[Any]]) -> None:
        size = sum(len(array[0]) if array.dtype == object else array.nbytes for array in outputs.values())
        if size > _SMALL_RESPONSE and size > shutil.disk_usage(SHARED_MEMORY).free // 2:
            state = outputs.pop(STATE_OUTPUT, None)
            if state is not None:  # the step counts already, and the client asks again
                log.warning(
                    "a video's state of %.0f MB does not fit into %s: give that more room, "
                    "or the video cannot go on after this server",
                    state.nbytes / 1e6,
                    SHARED_MEMORY,
                )
                self.send_arrays(outputs)
                return
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
        # Not of an answered request: Triton has freed what the question refers to, and would crash.
        with self._lock:
            return not self._sent and triton_io.is_cancelled(self._sender)

    def _send(self, response: Any) -> None:
        with self._lock:
            if self._sent:
                return
            self._sent = True
        triton_io.send(self._sender, response)
        self._model.flight.add(-1)


class TritonPythonModel:
    """The class that Triton's Python backend loads, in one process or in several for each model."""

    spec: ModelSpec
    core: SegmenterCore
    flight: InFlightCounter
    _log_limit = LogRateLimit()

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the model. A failure is one sentence in Triton's log."""
        end_after_parent()
        try:
            set_up_model_log(args["model_name"], get_settings())
            self._load(json.loads(args["model_config"]), Path(args["model_repository"]), args)
        except TritonSamError as error:
            raise pb_utils.TritonModelException(str(error)) from None

    def _load(self, config: dict[str, Any], repository: Path, args: dict[str, str]) -> None:
        refuse_numpy_2()
        settings = get_settings()
        folder = repository / args["model_version"]
        self.spec = served_spec(get_spec(triton_io.parameters_of(config)["model_id"]), folder)
        refuse_other_config(config, self.spec)
        self._settings: Settings = settings
        self._limits = PromptLimits.of(settings, self.spec.decoder.mask_side)
        self._steps = StepReader(self.spec, settings, self._limits)
        self.flight = InFlightCounter(args["model_name"])
        devices = devices_of(folder, settings)
        if instances_of(config) == 1 and len(devices) == 1:
            metrics = TritonMetrics(args["model_name"])
            metrics.begin()
            if settings.devices:  # without them the engine's own choice is the same
                settings = use_device(devices[0], settings)
            self.core = LocalCore(self.spec, folder, args["model_version"], settings, metrics)
            return
        workers = [
            WorkerOptions(
                server=os.getppid(),
                model=args["model_name"],
                version=args["model_version"],
                model_id=self.spec.id,
                folder=str(folder),
                index=index,
                device=device,
            )
            for index, device in enumerate(devices)
        ]
        relayed = WorkerMetrics(args["model_name"], devices)
        self.core = WorkerCore(workers, instance_number(args), relayed, settings.ready_seconds)
        threading.Timer(_METRICS_DELAY, relayed.begin).start()

    def execute(self, requests: list[Any]) -> None:
        """Passes every request on, or refuses it at once if it is not valid."""
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
        self.core.close()
        self.flight.close()

    def _accept(self, request: Any, reply: _TritonReply) -> None:
        parameters = json.loads(request.parameters() or "{}")
        session = session_of(parameters)
        if flag(parameters, "ping"):
            self.core.ping(lambda answer: _answer(reply, answer))
        elif flag(parameters, "about"):
            reply.send_json({**self.core.info.as_json(), "prompts": sorted(self.spec.prompts)})
        elif flag(parameters, "cancel"):
            if session is None:
                raise InvalidInput("a cancel request needs the parameter session_id")
            before, only = number(parameters, "before"), number(parameters, "only")
            self.core.cancel(
                session, before, only, lambda count: reply.send_json({"session_id": session, "cancelled": count})
            )
        elif "follow" in parameters:
            run, since = text_parameter(parameters, "follow"), number(parameters, "since") or 0
            self.core.follow(run, since, reply.send_json)
        else:
            reply.masks_place = place_of(parameters)
            self._segment(request, reply, Turn(session, parameters), text_parameter(parameters, "run"))

    def _segment(self, request: Any, reply: _TritonReply, turn: Turn, run: str) -> None:
        tensors = {tensor.name(): tensor for tensor in request.inputs()}
        text = text_of(tensors, "prompt_json")
        document = None if text is None else prompt_document(text, self._limits)
        if document is not None and "video" in document:
            job, frame = self._steps.read(document, tensors, turn, reply, reply.wanted, self.core.info)
            job.request_id = reply.request_id
            self.core.submit(job, Source(frame))
            return
        prompt = self._prompt(document)
        if prompt is not None and prompt.everything is not None:
            refuse_tensors(reply.wanted)
        image = image_bytes(tensors, self._settings.max_image_bytes)
        embedding = np.array(tensors["embedding"].as_numpy()) if "embedding" in tensors else None
        key = text_of(tensors, "image_key")
        given = sum(value is not None for value in (image, embedding, key))
        if given != 1:
            raise InvalidInput(
                "send exactly one of image, image_b64, image_key and embedding"
                + (", not several" if given else ": this request has none")
            )
        if image is not None:
            info = self.core.info
            key = content_key(info.model_id, info.version, info.encoder, image)
        job = SegmentJob(
            reply,
            prompt,
            key or "",
            turn.session,
            turn.latest_wins,
            needs=Needs(embedding="embedding" in reply.wanted) if prompt is None else needs_of(prompt, reply.wanted),
            sequence=turn.sequence,
            request_id=reply.request_id,
            run=run,
            background=turn.background,
        )
        self.core.submit(job, Source(image, embedding))

    def _prompt(self, document: Mapping[str, Any] | None) -> Prompt | None:
        if document is None:
            return None
        prompt = prompt_from_mapping(document, self._limits)
        prompt.check_kinds(self.spec.prompts, self.spec.id)
        return prompt


def _answer(reply: _TritonReply, answer: dict[str, Any] | TritonSamError) -> None:
    if isinstance(answer, TritonSamError):
        reply.fail(answer)
    else:
        reply.send_json(answer)


def refuse_numpy_2() -> None:
    """Raises InternalError for numpy 2, with which the stub returns wrong data."""
    if int(np.__version__.split(".")[0]) >= 2:
        raise InternalError(
            f"numpy {np.__version__} gives silently wrong tensors in this server's backend: {install('numpy<2')}"
        )


def instances_of(config: dict[str, Any]) -> int:
    """The number of processes that Triton starts for a model."""
    groups = config.get("instance_group", [])
    return sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in groups)


def instance_number(args: dict[str, str]) -> int:
    """The number of this process among those of its model: 2 for ``sam2_0_2``."""
    return int(args.get("model_instance_name", "_0").rpartition("_")[2] or 0)


def refuse_other_config(config: dict[str, Any], spec: ModelSpec) -> None:
    """Raises InternalError if a config was written for other graphs: its setup was interrupted."""
    declared = {tensor["name"]: [int(size) for size in tensor["dims"]] for tensor in config.get("output", [])}
    embedding = list(dict(spec.encoder.outputs)[spec.encoder.embedding])
    side = spec.decoder.mask_side
    if declared.get("embedding") != embedding or declared.get("low_res_logits", [])[2:] != [side, side]:
        raise InternalError(
            f"the config of {config['name']} does not fit its newest version: run `triton-sam setup {spec.id}` again"
        )
