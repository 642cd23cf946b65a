"""Converts ONNX Runtime's own format (.ort) to plain ONNX files, which every runtime reads."""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime

from triton_sam.errors import SetupError
from triton_sam.models.checksums import matches_checksum, write_checksum

_ORT_SUFFIX = ".ort"


def as_onnx(source: Path, folder: Path) -> Path:
    """``source`` itself if it is ONNX already; else its conversion, which is written once and cached in ``folder``.

    ONNX Runtime's own format runs nowhere else, not even in Triton's onnxruntime backend under the usual file name.
    The graph is written unoptimised, because optimisations for one machine may not suit another.
    """
    if source.suffix != _ORT_SUFFIX:
        return source
    target = folder / f"{source.stem}.onnx"
    if matches_checksum(target):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{source.stem}.{os.getpid()}.part"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(partial)
    options.log_severity_level = 3
    options.add_session_config_entry("session.save_model_format", "ONNX")
    try:
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        partial.replace(target)
        write_checksum(target)
    except Exception as error:  # ONNX Runtime's exceptions share no narrower base class
        raise SetupError(f"{source.name} could not be converted to ONNX: {error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return target
