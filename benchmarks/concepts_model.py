"""Random networks that find concepts, for benchmarks, and the same for transformers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.device_scale import MODEL
from triton_sam.models.catalog import get_spec
from triton_sam.models.concept_traits import concept_traits, traits_to_json
from triton_sam.models.specs import (
    CONCEPTS_FILE,
    GRAPHS_FILE,
    NETWORK_FILE,
    TOKENIZER_FILE,
    ModelSpec,
    exported_graphs,
    graphs_to_json,
)
from triton_sam.networks.segmenters import build

_BEGIN, _END, _WORDS = "<|startoftext|>", "<|endoftext|>", ("coin", "spoon", "visual", "thing", "red", "blue")
_PREFIX, _NECK = "concepts.", "vision_encoder."
#: Of transformers' model, for what it is not used for here.
_UNUSED = ("neck.fpn_layers.3", "text_encoder.text_projection", "semantic_projection", "conv_layers.2", "norms.2")


def concept_spec(*, small: bool, concepts: bool = True) -> ModelSpec:
    """SAM 3, or the toy of its kind, which a CPU can run for a try; with words, or for clicks alone."""
    spec = get_spec("sam3:shapes" if small else "sam3:full")
    architecture, side = spec.architecture, spec.side
    return dataclasses.replace(
        spec,
        graphs=exported_graphs(architecture, side),
        memory=None,
        concepts=concept_traits(architecture, side) if concepts else None,
    )


def random_network(spec: ModelSpec, device: torch.device) -> Any:
    """In float32 on a device, with signals at scale in every layer."""
    torch.manual_seed(0)
    with torch.device(device):  # random numbers of a GPU take no time
        network = build(spec.architecture, spec.side, concepts=True).to(device)
    for name, parameter in network.named_parameters():
        noise = torch.randn_like(parameter)
        if parameter.ndim >= 2 and min(parameter.shape[:2]) > 4:
            parameter.data = noise / parameter[0].numel() ** 0.5
        elif name.endswith("weight") and parameter.ndim == 1:
            parameter.data = 1 + 0.1 * noise
        else:
            parameter.data = (0.5 if parameter.ndim >= 2 else 0.1) * noise
    return network


def as_transformers(network: Any, spec: ModelSpec, device: torch.device) -> Any:
    """The same as transformers' ``Sam3Model``, in float32 on the device."""
    from transformers import Sam3Model

    with torch.device(device):
        model = Sam3Model(_config(network, spec))
    ours = {}
    for name, tensor in network.state_dict().items():
        if name.startswith(f"{_PREFIX}neck."):
            ours[_NECK + name.removeprefix(_PREFIX)] = tensor
        elif name.startswith(_PREFIX):
            ours[name.removeprefix(_PREFIX)] = tensor
        elif name.startswith("vision_encoder.backbone."):
            ours[name] = tensor
    missing, unknown = model.load_state_dict(ours, strict=False)
    assert not unknown, unknown
    assert all(any(part in name for part in _UNUSED) for name in missing), missing
    return model.to(device).eval().requires_grad_(False)


def _config(network: Any, spec: ModelSpec) -> Any:
    """transformers' own sizes are those of SAM 3."""
    from transformers import Sam3Config

    architecture, sizes = spec.architecture, spec.architecture.concepts
    assert sizes is not None
    if spec.side == Sam3Config().image_size:
        return Sam3Config()
    grid = spec.side // 14
    common = {"hidden_size": architecture.neck, "num_attention_heads": sizes.heads}
    layered = common | {"intermediate_size": sizes.hidden}
    return Sam3Config(
        vision_config={
            "model_type": "sam3_vision_model",
            "fpn_hidden_size": architecture.neck,
            "backbone_feature_sizes": [[grid * scale, grid * scale] for scale in (4, 2, 1)],
            "backbone_config": network.vision_encoder.config.backbone_config.to_dict(),
        },
        text_config={
            "model_type": "clip_text_model",
            "vocab_size": sizes.words,
            "hidden_size": sizes.text_width,
            "intermediate_size": sizes.text_hidden,
            "num_hidden_layers": sizes.text_layers,
            "num_attention_heads": sizes.text_heads,
            "max_position_embeddings": sizes.tokens,
            "hidden_act": "gelu",
        },
        geometry_encoder_config=layered | {"num_layers": sizes.geometry_layers},
        detr_encoder_config=layered | {"num_layers": sizes.encoder_layers},
        detr_decoder_config=layered | {"num_layers": sizes.decoder_layers, "num_queries": sizes.queries},
        mask_decoder_config=common,
    )


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer of whole words, each with the same token if it is none of a few."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = ("[UNK]", *_WORDS, _BEGIN, _END)
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    marks = [(mark, words.index(mark)) for mark in (_BEGIN, _END)]
    made.post_processor = processors.TemplateProcessing(single=f"{_BEGIN} $A {_END}", special_tokens=marks)
    file = folder / TOKENIZER_FILE
    made.save(str(file))
    return file


def write_version(folder: Path, spec: ModelSpec, network: Any) -> Path:
    """Writes what a repository's version holds for torch; returns that folder. Without concepts in ``spec``, none."""
    version = folder / MODEL / "1"
    version.mkdir(parents=True, exist_ok=True)
    weights = {name: one.contiguous() for name, one in network.state_dict().items()}
    if spec.concepts is None:
        weights = {name: one for name, one in weights.items() if not name.startswith(_PREFIX)}
    else:
        write_words(version, spec)
    (version / GRAPHS_FILE).write_text(graphs_to_json(spec.graphs))
    save_file(weights, version / NETWORK_FILE)
    return version


def write_words(version: Path, spec: ModelSpec) -> None:
    """What a version that finds concepts has besides."""
    assert spec.concepts is not None
    (version / CONCEPTS_FILE).write_text(traits_to_json(spec.concepts))
    write_tokenizer(version)
