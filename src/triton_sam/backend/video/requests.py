"""Reads the tensors and parameters of a video step's request."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from triton_sam.backend.cache import content_key
from triton_sam.backend.jobs import SegmentJob, SegmentReply
from triton_sam.backend.replies import ModelInfo, needs_of
from triton_sam.backend.requests import Turn, image_bytes
from triton_sam.backend.video.answers import STATE_OUTPUT
from triton_sam.backend.video.outcome import VideoJob
from triton_sam.core.prompts import Prompt, PromptLimits
from triton_sam.core.video.request import WITH_IMAGE, Do, video_request
from triton_sam.errors import InvalidInput, TooLarge, Unsupported
from triton_sam.models.specs import ModelSpec
from triton_sam.settings import Settings

#: What a state has besides its arrays.
_HEAD_BYTES = 8 * 1024 * 1024


class StepReader:
    """Makes jobs of the requests of one model."""

    def __init__(self, spec: ModelSpec, settings: Settings, limits: PromptLimits) -> None:
        self._spec = spec
        self._settings = settings
        self._limits = limits

    def read(
        self,
        document: Mapping[str, Any],
        tensors: Mapping[str, Any],
        turn: Turn,
        reply: SegmentReply,
        wanted: Set[str],
        info: ModelInfo,
    ) -> tuple[SegmentJob, bytes | None]:
        """(job, the frame's file).

        Args:
            document: the parsed ``prompt_json``.
            wanted: the outputs.
        """
        if self._spec.memory is None:
            raise Unsupported(
                f"{self._spec.id} has no memory modules: set up a model whose checkpoint was trained for video, "
                "as docs/guides/video.md lists them"
            )
        request = video_request(document, self._limits)
        if turn.session not in (None, request.session):
            raise InvalidInput("the parameter session_id and session of video are one name: give the same one twice")
        if turn.latest_wins:
            raise InvalidInput("every step of a video counts: leave the parameter latest_wins out")
        if "embedding" in wanted:
            raise InvalidInput("a video has no output embedding: leave it out")
        prompt = Prompt((), format=request.format)
        image = self._image(tensors, request.do)
        key = "" if image is None else content_key(info.model_id, info.version, info.encoder, image)
        job = SegmentJob(
            reply,
            prompt,
            key,
            request.session,
            needs=needs_of(prompt, wanted),
            sequence=turn.sequence,
            background=True,
            video=VideoJob(request, self._state(tensors, request.do)),
        )
        return job, image

    def _image(self, tensors: Mapping[str, Any], do: Do) -> bytes | None:
        for name in ("image_key", "embedding"):
            if name in tensors:
                raise InvalidInput(f"a video has no {name}: send the frame's file as image")
        image = image_bytes(tensors, self._settings.max_image_bytes)
        if (image is None) is (do in WITH_IMAGE):
            wrong = "needs image, the frame's file: this request has none" if image is None else "takes no image"
            raise InvalidInput(f'"do": "{do.value}" of video {wrong}')
        return image

    def _state(self, tensors: Mapping[str, Any], do: Do) -> bytes | None:
        if STATE_OUTPUT not in tensors:
            return None
        if do is not Do.OPEN:
            raise InvalidInput(f'video_state restores a session with "do": "open", not with "{do.value}"')
        array = tensors[STATE_OUTPUT].as_numpy()
        most = self._settings.video_session_bytes
        if array.nbytes > most + _HEAD_BYTES:
            raise TooLarge(
                f"video_state has {array.nbytes:,} bytes and a session may have {most:,}: "
                "raise TRITON_SAM_VIDEO_SESSION_BYTES, or begin a session with fewer objects"
            )
        return bytes(array.tobytes())
