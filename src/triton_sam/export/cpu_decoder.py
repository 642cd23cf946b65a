"""A plain ONNX decoder -> one that answers a click sooner on a CPU; the same masks and scores, but for rounding.

First what ONNX Runtime would do by itself at every load, short of layouts that fit one machine; then rewrites that know
how a decoder is built. The file holds operators of ONNX and of ONNX Runtime's CPU provider and runs on every CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime

from triton_sam.errors import SetupError
from triton_sam.export.completeness import Count, check_complete
from triton_sam.export.decoder_attention import absorb_image_projections, count_attentions
from triton_sam.export.decoder_facts import drop_idle, fold_fixed, learn_facts
from triton_sam.export.decoder_mask_prompts import skip_absent_masks
from triton_sam.export.decoder_trials import largest_difference
from triton_sam.export.decoder_upscaling import count_upscalings, upscale_with_channels_last
from triton_sam.export.graph_rewrites import Graph, onnx_package, replacing
from triton_sam.models.specs import Graphs, Precision

#: Of a logit or a score. Logits are clipped at 32, masks are where they are above 0: one pixel in 100 000 may change.
MOST_DIFFERENCE = 1e-3
#: They hide transposes and factors in products, where the rewrites would not find them.
_NOT_YET = ["MatmulTransposeFusion", "MatMulScaleFusion"]


def make_cpu_decoder(
    plain: Path, destination: Path, graphs: Graphs, say: Callable[[str], None] = lambda _: None
) -> Path | None:
    """Writes the fast twin of a decoder to ``destination``.

    Args:
        plain: a decoder in float32, as it is served.
        graphs: its description; names, shapes and the precision are read.
        say: takes one line when it is done.

    Returns:
        ``destination``, or None for a decoder in other numbers than float32: then no file is written.

    Raises:
        IncompleteRewrite: something in the graph is not known to the rewrites; no file is written, since a decoder
            that is half as fast as it should be is not noticed.
        SetupError: the result is not close enough to the original, or ``plain`` cannot be read; no file is written.
    """
    if graphs.precision is not Precision.FP32:
        return None
    model = _load_optimised(plain)
    facts = learn_facts(model, graphs)
    graph = Graph(model)
    fold_fixed(graph, facts)
    drop_idle(graph, facts)
    wanted = count_attentions(graph, facts), count_upscalings(graphs)
    attentions, upscalings = absorb_image_projections(graph, facts), upscale_with_channels_last(graph, facts)
    check_complete([Count("attentions", attentions, wanted[0]), Count("upscalings", upscalings, wanted[1])])
    takes_masks = graphs.decoder.mask in {entry.name for entry in model.graph.input}
    # Not before the others are done: a plain decoder wants a row of the image for each prompt.
    check_complete([Count("mask prompts", skip_absent_masks(graph, model, graphs), int(takes_masks))])
    made = graph.finish().SerializeToString(deterministic=True)
    difference = largest_difference(plain, made, graphs)
    if not difference <= MOST_DIFFERENCE:  # so that NaN does not pass
        raise SetupError(
            f"the fast decoder of {plain.name} is not kept: it is off by {difference:.1g} "
            f"where {MOST_DIFFERENCE:.1g} is allowed"
        )
    with replacing(destination) as partial:
        partial.write_bytes(made)
    say(f"{destination.name}: {attentions} attentions and {upscalings} upscalings rewritten, off by {difference:.1g}")
    return destination


def _load_optimised(plain: Path) -> Any:
    """The model after ONNX Runtime's own rewrites that do not depend on the machine."""
    onnx = onnx_package()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory(prefix="triton-sam-decoder-") as folder:
        path = str(Path(folder) / "decoder.onnx")
        options.optimized_model_filepath = path
        try:
            onnxruntime.InferenceSession(
                str(plain), options, providers=["CPUExecutionProvider"], disabled_optimizers=_NOT_YET
            )
            return onnx.load(path)
        except Exception as error:  # ONNX Runtime's exceptions share no base class but this
            raise SetupError(f"{plain.name} cannot be read as ONNX: {error}") from None
