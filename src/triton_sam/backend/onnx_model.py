"""Triton's ``onnxruntime`` backend for the embedded server: plain ONNX models through the onnxruntime package.

NVIDIA's container has a native backend of this name, and the same model folders run on both. A config may be full,
minimal or absent: missing parts are read from the graph.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from triton_sam.engines.onnx import open_session
from triton_sam.server.in_flight import InFlightCounter

log = logging.getLogger(__name__)
_DEFAULT_FILE = "model.onnx"
#: ONNX Runtime's element type -> Triton's.
_TYPES = {
    "tensor(float)": "TYPE_FP32",
    "tensor(float16)": "TYPE_FP16",
    "tensor(double)": "TYPE_FP64",
    "tensor(int64)": "TYPE_INT64",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int8)": "TYPE_INT8",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(bool)": "TYPE_BOOL",
}


class TritonPythonModel:
    """One ONNX graph."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fills in tensors that the config does not name; a batch axis is left to the graph."""
        config = auto_complete_model_config.as_dict()
        if config["input"] and config["output"]:
            return auto_complete_model_config
        session = open_session(_model_file(_folder_from_command_line(), config))
        if not config["input"]:
            for node in session.get_inputs():
                auto_complete_model_config.add_input(_describe(node))
        if not config["output"]:
            for node in session.get_outputs():
                auto_complete_model_config.add_output(_describe(node))
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the graph."""
        config = json.loads(args["model_config"])
        self._session = open_session(_model_file(Path(args["model_repository"]) / args["model_version"], config))
        self._outputs = [node.name for node in self._session.get_outputs()]
        self._refuse_other_config(config)
        self._flight = InFlightCounter(args["model_name"])

    def _refuse_other_config(self, config: dict[str, Any]) -> None:
        """Refuses a config that names other tensors than the graph: it would fail at every request."""
        known = {node.name for node in (*self._session.get_inputs(), *self._session.get_outputs())}
        known |= {node.name for node in self._session.get_overridable_initializers()}
        named = {tensor["name"] for tensor in (*config["input"], *config["output"])}
        if not named <= known:
            raise pb_utils.TritonModelException(
                f"the config of {config['name']} names {sorted(named - known)[0]}, which its graph does not have: "
                "set up the model again"
            )

    def finalize(self) -> None:
        """Removes the count of requests in flight: all are answered."""
        self._flight.close()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Runs the graph once for each request. An error affects only its own request."""
        self._flight.add(len(requests))
        try:
            return [self._answer(request) for request in requests]
        finally:
            self._flight.add(-len(requests))

    def _answer(self, request: Any) -> Any:
        wanted = [name for name in self._outputs if name in request.requested_output_names()]
        feeds = {tensor.name(): np.ascontiguousarray(tensor.as_numpy()) for tensor in request.inputs()}
        try:
            values = self._session.run(wanted, feeds)
        except Exception as error:  # ONNX Runtime's exceptions share no base class but this
            code = pb_utils.TritonError.INVALID_ARG
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"the graph refused its inputs: {error}", code)
            )
        tensors = [pb_utils.Tensor(name, value) for name, value in zip(wanted, values, strict=True)]
        return pb_utils.InferenceResponse(output_tensors=tensors)


def _model_file(folder: Path, config: dict[str, Any]) -> Path:
    return folder / (config.get("default_model_filename") or _DEFAULT_FILE)


def _folder_from_command_line() -> Path:
    """The newest version folder. Before ``initialize`` only the stub's command line has the model's path."""
    model_file = Path(Path("/proc/self/cmdline").read_bytes().split(b"\0")[1].decode())
    return model_file.parent


def _describe(node: Any) -> dict[str, Any]:
    dims = [dim if isinstance(dim, int) else -1 for dim in node.shape]
    return {"name": node.name, "data_type": _TYPES[node.type], "dims": dims}
