"""Engines that track with a small network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.video_models import VideoModel
from triton_sam.engines.onnx_tracking import OnnxTrackingEngine
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.export.run import write_graphs
from triton_sam.models.specs import DECODER_FILE, ENCODER_FILE


def onnx_engine(model: VideoModel, folder: Path) -> Any:
    spec = model.spec
    write_graphs(model.network, spec, spec.graphs, folder)
    return OnnxTrackingEngine(spec, folder / ENCODER_FILE, folder / DECODER_FILE, memory=folder, threads=1)


def torch_engine(model: VideoModel, _folder: Path) -> Any:
    engine = TorchEngine(model.spec, model.network, TorchOptions(torch.device("cpu")))
    engine.warm_up()
    assert engine.tracker is not None
    engine.tracker._step.kept_in = KEPT_IN["torch"]
    return engine


#: Types of memories of engines that can keep them otherwise than as published: then one number that is rounded to the
#: other side, which has an effect of a thousandth of the logits' deviation, cannot hide what is wrong.
KEPT_IN = {"torch": torch.float32}

#: By the engine's name: makes one, in a folder for its files.
ENGINES: dict[str, Callable[[VideoModel, Path], Any]] = {"onnx": onnx_engine, "torch": torch_engine}
