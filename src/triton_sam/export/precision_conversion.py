"""Converts float32 graphs to fp16 or int8. Inputs and outputs stay float32, so callers need not know."""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx

from triton_sam.export.onnx_files import external_data, save
from triton_sam.models.specs import Precision

#: The second layer of an MLP, as the networks of all families name it.
_AFTER_GELU = re.compile(r"/mlp/(?:proj_out|lin2|fc2)/")


def convert_graph(graph: Path, precision: Precision, *, is_decoder: bool) -> None:
    """Converts a float32 graph in place.

    With int8, a decoder stays in float32: it is a hundredth of the work, and would be half of the error.
    """
    if precision is Precision.FP16:
        _to_fp16(graph)
    elif precision is Precision.INT8 and not is_decoder:
        _to_int8(graph)


def _to_fp16(graph: Path) -> None:
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one for every constant below the smallest number of half precision
        half = convert_float_to_float16(
            onnx.load(str(graph)),
            keep_io_types=True,
            op_block_list=[*DEFAULT_OP_BLOCK_LIST, "Resize"],  # its scales must stay float32
        )
    save(half, graph)


def _to_int8(graph: Path) -> None:
    """Quantises the weights of matrix products to 8 bits per channel, and activations dynamically.

    Products after a GELU stay in float32: its few large numbers leave no resolution for the many small ones. Skipping
    them reduces the error of the embeddings by a third to a half.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    nodes = [
        node.name for node in onnx.load(str(graph), load_external_data=False).graph.node if node.op_type == "MatMul"
    ]

    with tempfile.TemporaryDirectory(dir=graph.parent, prefix=".int8-") as folder, _without_advice():
        small = Path(folder) / graph.name
        quantize_dynamic(
            graph,
            small,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=[name for name in nodes if not _AFTER_GELU.search(name)],
            per_channel=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=external_data(graph).exists(),
            extra_options={"MatMulConstBOnly": True},
        )
        save(onnx.load(str(small)), graph)


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Silences onnxruntime's advice, in the root logger, to preprocess graphs; that is for graphs without shapes."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)
