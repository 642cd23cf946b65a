"""Rewrites a plain ONNX decoder so that it is faster on a CPU; masks and scores are the same up to rounding.

First come the optimisations that ONNX Runtime would do at every load, except layouts for one machine. Then come
rewrites that know how a decoder is built. The file holds operators of ONNX and of ONNX Runtime's CPU provider, so it
runs on every CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime

from triton_sam.errors import SetupError
from triton_sam.export.decoder_analysis import analyse_decoder, drop_no_ops, fold_constants
from triton_sam.export.decoder_attention import absorb_image_projections, count_attentions
from triton_sam.export.decoder_comparison import largest_difference
from triton_sam.export.decoder_mask_prompts import skip_absent_masks
from triton_sam.export.decoder_upscaling import count_upscalings, upscale_with_channels_last
from triton_sam.export.onnx_graph import Graph, onnx_package, replacing
from triton_sam.export.rewrite_check import Count, check_complete
from triton_sam.models.specs import Graphs, Precision

#: Allowed difference of a logit or a score. Logits are clipped at 32, and masks are the pixels above 0: one pixel in
#: 100 000 may change.
MOST_DIFFERENCE = 1e-3
#: They hide transposes and factors inside products, where the rewrites would not find them.
_DISABLED_OPTIMIZERS = ["MatmulTransposeFusion", "MatMulScaleFusion"]


def make_cpu_decoder(
    plain: Path, destination: Path, graphs: Graphs, say: Callable[[str], None] = lambda _: None
) -> Path | None:
    """Writes a faster version of a decoder to ``destination``.

    Args:
        plain: a float32 decoder, as it is served.
        graphs: its description; names, shapes and the precision are read.
        say: callback for one summary line at the end.

    Returns:
        ``destination``, or None for a decoder that is not float32: then no file is written.

    Raises:
        IncompleteRewrite: the rewrites do not know something in the graph. No file is written, because nobody would
            notice a decoder that is half as fast as it should be.
        SetupError: the result is not close enough to the original, or ``plain`` cannot be read; no file is written.
    """
    if graphs.precision is not Precision.FP32:
        return None
    model = _load_optimised(plain)
    facts = analyse_decoder(model, graphs)
    graph = Graph(model)
    fold_constants(graph, facts)
    drop_no_ops(graph, facts)
    wanted = count_attentions(graph, facts), count_upscalings(graphs)
    attentions, upscalings = absorb_image_projections(graph, facts), upscale_with_channels_last(graph, facts)
    check_complete([Count("attentions", attentions, wanted[0]), Count("upscalings", upscalings, wanted[1])])
    takes_masks = graphs.decoder.mask in {entry.name for entry in model.graph.input}
    # After the others: a plain decoder needs one row of the image for each prompt.
    check_complete([Count("mask prompts", skip_absent_masks(graph, model, graphs), int(takes_masks))])
    made = graph.finish().SerializeToString(deterministic=True)
    difference = largest_difference(plain, made, graphs)
    if not difference <= MOST_DIFFERENCE:  # written so that NaN fails too
        raise SetupError(
            f"the fast decoder of {plain.name} is not kept: it is off by {difference:.1g}, "
            f"and {MOST_DIFFERENCE:.1g} is allowed"
        )
    with replacing(destination) as partial:
        partial.write_bytes(made)
    say(f"{destination.name}: {attentions} attentions and {upscalings} upscalings rewritten, off by {difference:.1g}")
    return destination


def _load_optimised(plain: Path) -> Any:
    """The model after those optimisations of ONNX Runtime that do not depend on the machine."""
    onnx = onnx_package()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory(prefix="triton-sam-decoder-") as folder:
        path = str(Path(folder) / "decoder.onnx")
        options.optimized_model_filepath = path
        try:
            onnxruntime.InferenceSession(
                str(plain), options, providers=["CPUExecutionProvider"], disabled_optimizers=_DISABLED_OPTIMIZERS
            )
            return onnx.load(path)
        except Exception as error:  # ONNX Runtime's exceptions share no narrower base class
            raise SetupError(f"{plain.name} cannot be read as ONNX: {error}") from None
