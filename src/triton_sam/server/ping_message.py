"""A ping to a segmenter, and its answer, as Triton's HTTP protocol has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

#: Body of a ping to ``/v2/models/NAME/infer``. It goes through the model's queues; nothing is computed.
PING = {"inputs": [], "outputs": [{"name": "result_json"}], "parameters": {"ping": True}}

#: The state of one device of a model: see :meth:`triton_sam.backend.core.SegmenterCore.ping`.
DeviceState = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PingAnswer:
    """What a segmenter answers.

    Attributes:
        encode_seconds: how long the present encode has taken.
        devices: the state of each; empty if the model does not tell.
    """

    encode_seconds: float
    devices: tuple[DeviceState, ...] = ()


def read_answer(reply: Any) -> PingAnswer:
    """Triton's reply to :data:`PING`; ValueError, LookupError or TypeError if it is none."""
    answer = json.loads(reply["outputs"][0]["data"][0])
    devices = tuple({**device} for device in answer.get("devices", ()))
    return PingAnswer(float(answer["encode_seconds"]), devices)
