"""Meta's own video predictor, of PyPI ``sam2`` 1.1.0, from a folder with its source and without its dependencies."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]

from triton_sam.export.random_weights import randomise

#: Our id -> the configuration's file below ``sam2``.
CONFIGS = {
    f"sam2.1:{size}": f"configs/sam2.1/sam2.1_hiera_{short}.yaml"
    for size, short in (("tiny", "t"), ("small", "s"), ("base_plus", "b+"), ("large", "l"))
}
#: What ``build_sam2_video_predictor`` sets, except for holes, which need its CUDA extension; and ADR 24's corrections.
_OPTIONS = {
    "sam_mask_decoder_extra_args": {
        "dynamic_multimask_via_stability": True,
        "dynamic_multimask_stability_delta": 0.05,
        "dynamic_multimask_stability_thresh": 0.98,
    },
    "binarize_mask_from_pts_for_mem_enc": True,
    "fill_hole_area": 0,
    "add_all_frames_to_correct_as_cond": True,
}
_PREDICTOR = "sam2.sam2_video_predictor.SAM2VideoPredictor"
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?e[-+]?\d+")


def make_predictor(source: Path, model: str, seed: int) -> Any:
    """A predictor with random weights, in float32 on the CPU.

    Args:
        source: the folder that holds the package ``sam2``.
    """
    stand_in()
    sys.path.insert(0, str(source))
    config = yaml.safe_load((source / "sam2" / CONFIGS[model]).read_text())["model"]
    torch.manual_seed(seed)  # for buffers
    predictor = instantiate(config | _OPTIONS | {"_target_": _PREDICTOR}).eval().requires_grad_(False)
    randomise(predictor, seed)
    for layer in predictor.memory_attention.layers:
        # Else what the rounding of one number of a memory to bfloat16 decides grows to a thousandth of the logits.
        layer.cross_attn_image.q_proj.weight *= 0.5
    return predictor


def shift_appearance(predictor: Any, amount: float) -> None:
    """Adds to the score of being there: random objects are always there, or never."""
    predictor.sam_mask_decoder.pred_obj_score_head.layers[-1].bias += amount


def stand_in() -> None:
    """Replaces the packages that Meta's code imports at its start and that building a network does not need."""

    class GlobalHydra:
        """Says that there is nothing to set up."""

        @classmethod
        def instance(cls) -> GlobalHydra:
            return cls()

        def is_initialized(self) -> bool:
            return True

    _module("hydra", initialize_config_module=None)
    _module("hydra.core")
    _module("hydra.core.global_hydra", GlobalHydra=GlobalHydra)
    _module("iopath")
    _module("iopath.common")
    _module("iopath.common.file_io", g_pathmgr=None)


def _module(name: str, **contents: Any) -> None:
    module = sys.modules.setdefault(name, ModuleType(name))
    for key, value in contents.items():
        setattr(module, key, value)


def instantiate(config: Any) -> Any:
    """A configuration with every mapping that names its ``_target_`` replaced by what that makes, as hydra does."""
    if isinstance(config, Mapping):
        made = {key: instantiate(value) for key, value in config.items() if key != "_target_"}
        if "_target_" not in config:
            return made
        module, _, name = config["_target_"].rpartition(".")
        return getattr(importlib.import_module(module), name)(**made)
    if isinstance(config, list):
        return [instantiate(value) for value in config]
    if isinstance(config, str) and _NUMBER.fullmatch(config):
        return float(config)  # PyYAML reads 1e-6 as a text
    return config


class MetaVideo:
    """A video in Meta's predictor.

    Args:
        frames: [T,3,side,side] normalised, on the predictor's device.
        size: (width, height) in original pixels.
    """

    def __init__(self, predictor: Any, frames: torch.Tensor, size: tuple[int, int]) -> None:
        self.predictor = predictor
        module: Any = importlib.import_module(type(predictor).__module__)
        module.load_video_frames = lambda **_: (frames, size[1], size[0])
        self.state = predictor.init_state("frames that are there already")

    def logits(self, frame: int, name: int) -> tuple[torch.Tensor, float]:
        """The newest [h,w] logits of an object in a frame, and its score of being there."""
        index = self.state["obj_id_to_idx"][name]
        for kind in ("temp_output_dict_per_obj", "output_dict_per_obj"):
            for found in self.state[kind][index].values():
                if frame in found:
                    one = found[frame]
                    return one["pred_masks"][0, 0].float().cpu(), float(one["object_score_logits"])
        raise KeyError(frame)
