"""Small random networks that find concepts, and transformers' ``Sam3Model`` with the same weights.

The reference calls torchvision's ``roi_align``. torchvision cannot be installed: it is ONNX Runtime's operator here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch import Tensor

from triton_sam.export.random_weights import randomise
from triton_sam.models.architecture import Architecture, Backbone, ConceptArchitecture
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import TOKENIZER_FILE, ModelSpec, exported_graphs
from triton_sam.networks.segmenters import build

SIDE = 168
#: Words of the small tokenizer, in the order of their tokens; the last two begin and end a text.
WORDS = ("[UNK]", "red", "blue", "circle", "small", "star", "visual", "<s>", "</s>")
END = len(WORDS) - 1
CONCEPTS = ConceptArchitecture(
    words=len(WORDS),
    text_width=32,
    text_layers=2,
    text_heads=2,
    text_hidden=64,
    end_token=END,
    geometry_layers=2,
    encoder_layers=2,
    decoder_layers=3,
    heads=4,
    hidden=96,
    queries=20,
)
ARCHITECTURE = Architecture(Backbone.PERCEPTION, 64, (2,), 2, (1,), (6,), generation="sam3", neck=64, concepts=CONCEPTS)


def small_concept_spec(architecture: Architecture = ARCHITECTURE, side: int = SIDE) -> ModelSpec:
    return dataclasses.replace(
        get_spec("sam3:full"), architecture=architecture, graphs=exported_graphs(architecture, side)
    )


def small_concept_network(architecture: Architecture = ARCHITECTURE, side: int = SIDE, seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build(architecture, side, concepts=True)
    randomise(network, seed)
    # Queries that differ from each other: boxes of all sizes, and scores on both sides of a threshold.
    generator = torch.Generator().manual_seed(seed)
    decoder = network.concepts.detr_decoder
    for table in (decoder.reference_points, decoder.query_embed):
        table.weight.data = torch.randn(table.weight.shape, generator=generator)
    for layer in decoder.layers:
        for part in (layer.self_attn, layer.text_cross_attn, layer.vision_cross_attn):
            part.o_proj.weight.data *= 0.3
    decoder.box_head.layer3.weight.data *= 0.2
    network.concepts.dot_product_scoring.query_proj.weight.data *= 3
    return network


@cache
def _aligner(size: int) -> Any:
    node = helper.make_node(
        "RoiAlign",
        ["x", "rois", "which"],
        ["y"],
        mode="avg",
        output_height=size,
        output_width=size,
        sampling_ratio=0,
        spatial_scale=1.0,
        coordinate_transformation_mode="output_half_pixel",
    )
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "align",
        [
            helper.make_tensor_value_info("x", floats, [None] * 4),
            helper.make_tensor_value_info("rois", floats, [None, 4]),
            helper.make_tensor_value_info("which", TensorProto.INT64, [None]),
        ],
        [helper.make_tensor_value_info("y", floats, [None] * 4)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def reference_roi_align(features: Tensor, boxes: Any, size: int) -> Tensor:
    """torchvision's, by ONNX Runtime: [B,C,h,w] and B times [E,4] xyxy -> [B*E,C,size,size]."""
    which = np.repeat(np.arange(len(boxes), dtype=np.int64), [len(rows) for rows in boxes])
    feeds = {"x": features.numpy(), "rois": torch.cat(list(boxes)).numpy(), "which": which}
    return torch.from_numpy(_aligner(size).run(None, feeds)[0])


@contextlib.contextmanager
def with_roi_align() -> Iterator[None]:
    from transformers.models.sam3 import modeling_sam3

    missing = object()
    before = getattr(modeling_sam3, "torchvision", missing)
    modeling_sam3.torchvision = SimpleNamespace(ops=SimpleNamespace(roi_align=reference_roi_align))
    try:
        yield
    finally:
        if before is missing:
            del modeling_sam3.torchvision
        else:
            modeling_sam3.torchvision = before


def write_small_tokenizer(folder: Path, words: Sequence[str] = WORDS) -> Path:
    """A tokenizer of whole words; the last two of ``words`` begin and end a text, and the first stands for others."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    begin, end = words[-2:]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=[(begin, len(words) - 2), (end, len(words) - 1)]
    )
    file = folder / TOKENIZER_FILE
    tokenizer.save(str(file))
    return file


def write_small_model(folder: Path, network: Any | None = None) -> ModelSpec:
    """Writes the graphs of a small network into ``folder`` as a version of a repository has them; what is served."""
    from triton_sam.export.run import write_graphs
    from triton_sam.models.specs import GRAPHS_FILE, graphs_to_json
    from triton_sam.repository.model_folders import served_spec

    spec = small_concept_spec()
    folder.mkdir(parents=True, exist_ok=True)
    write_graphs(network or small_concept_network(), spec, spec.graphs, folder)
    write_small_tokenizer(folder)
    (folder / GRAPHS_FILE).write_text(graphs_to_json(spec.graphs))
    return served_spec(spec, folder)


def reference_network(network: Any, architecture: Architecture, side: int) -> Any:
    """transformers' ``Sam3Model`` with the weights of ours; those that ours has not are random."""
    from transformers import Sam3Config, Sam3Model

    sizes = architecture.concepts
    assert sizes is not None
    grid = side // 14
    common = {"hidden_size": architecture.neck, "num_attention_heads": sizes.heads}
    layered = common | {"intermediate_size": sizes.hidden}
    config = Sam3Config(
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
            "bos_token_id": sizes.end_token - 1,
            "eos_token_id": sizes.end_token,
            "pad_token_id": sizes.end_token,
        },
        geometry_encoder_config=layered | {"num_layers": sizes.geometry_layers},
        detr_encoder_config=layered | {"num_layers": sizes.encoder_layers},
        detr_decoder_config=layered | {"num_layers": sizes.decoder_layers, "num_queries": sizes.queries},
        mask_decoder_config=common,
    )
    reference = Sam3Model(config).eval().requires_grad_(False)
    ours = {}
    for name, tensor in network.state_dict().items():
        if name.startswith("concepts.neck."):
            ours["vision_encoder." + name.removeprefix("concepts.")] = tensor
        elif name.startswith("concepts."):
            ours[name.removeprefix("concepts.")] = tensor
        elif name.startswith("vision_encoder.backbone."):
            ours[name] = tensor
    missing, unknown = reference.load_state_dict(ours, strict=False)
    assert not unknown
    unused = ("vision_encoder.neck.fpn_layers.3", "text_encoder.text_projection", "mask_decoder.semantic_projection")
    unused += ("mask_decoder.pixel_decoder.conv_layers.2", "mask_decoder.pixel_decoder.norms.2")
    assert all(name.startswith(unused) for name in missing)
    return reference


def pictures(count: int, side: int = SIDE, seed: int = 0) -> Tensor:
    """[count,3,side,side] in [0,1]: smooth noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 8, 8, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear")


def tokens(texts: list[str], sizes: ConceptArchitecture = CONCEPTS) -> tuple[Tensor, Tensor]:
    """[B,32] ids and masks of known words."""
    ids = torch.full((len(texts), sizes.tokens), END)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        found = [WORDS.index("<s>"), *(WORDS.index(word) for word in text.split()), END]
        ids[row, : len(found)] = torch.tensor(found)
        mask[row, : len(found)] = 1
    return ids, mask
