"""Rewrites a plain ONNX encoder so that it is faster on a CPU; its error is measured before the file is kept.

Ready-made and exported encoders of any size are rewritten by the same steps; one that took any number of images takes
one afterwards. :mod:`~triton_sam.export.shape_folding`, :mod:`~triton_sam.export.encoder_rewrites`,
:mod:`~triton_sam.export.window_tiles` and :mod:`~triton_sam.export.late_padding` change nothing but rounding. On
request, wide matrix products are quantised to 8 bits (:mod:`~triton_sam.export.cpu_encoder_int8`). That changes masks,
and pays off on CPUs with 8-bit instructions (VNNI, AMX, ARM's dot products). The file holds operators of ONNX Runtime's
CPU provider and no machine-specific layouts, so it runs on every CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image, ImageDraw, ImageFilter

from triton_sam.core.cpu_features import session_entry
from triton_sam.errors import SetupError
from triton_sam.export.cpu_encoder_int8 import choose_products, equalise_channels, to_int8
from triton_sam.export.encoder_rewrites import (
    count_attentions,
    fuse_attention,
    join_convolutions,
    split_projections,
)
from triton_sam.export.late_padding import project_after_cutting, project_before_padding
from triton_sam.export.onnx_graph import FloatArray, Graph, onnx_package, replacing
from triton_sam.export.rewrite_check import Count, check_complete
from triton_sam.export.shape_folding import for_one_image
from triton_sam.export.window_tiles import count_windowed_blocks, tile_windows
from triton_sam.models.specs import EXTERNAL_DATA_SUFFIX, Graphs, Precision

#: Part of the cached file's name. Increase it when the same encoder is rewritten differently.
RECIPE = 5
#: Allowed standard deviation of an output's error over the output's own if only rounding differs; 1e-6 was measured.
MOST_ROUNDING = 1e-4
#: The same with 8 bits. At 0.02, masks of photographs agree to an IoU of 0.98 on average; drawings are a little harder.
MOST_ERROR = 0.045
#: protobuf, and with it shape inference, is limited to 2 GiB.
_LARGEST_FILE = 1_800_000_000
_SHAPES = 140
_SEED = 0


def make_cpu_encoder(
    plain: Path,
    destination: Path,
    graphs: Graphs,
    say: Callable[[str], None] = lambda _: None,
    *,
    eight_bits: bool = False,
) -> Path | None:
    """Writes a faster version of an encoder to ``destination``.

    Args:
        plain: a float32 encoder, as it is served.
        graphs: its description; names, the side, the pixel range and the precision are read.
        say: callback for one summary line at the end.
        eight_bits: also quantise wide products to 8 bits; without it, masks equal those of ``plain`` up to rounding.

    Returns:
        ``destination``, or None if nothing in the graph can be made faster: then no file is written.

    Raises:
        IncompleteRewrite: the rewrites do not know something in the graph; no file is written.
        SetupError: the result is not close enough to the original, or ``plain`` cannot be read; no file is written.
    """
    if graphs.precision is not Precision.FP32:
        return None
    graph = Graph(for_one_image(_load(plain), graphs.encoder.image))
    attentions, blocks = count_attentions(graph), count_windowed_blocks(graph)
    counts = [
        # Each finer feature is the output of two convolutions in a row.
        Count("pairs of convolutions", join_convolutions(graph), len(graphs.encoder.outputs) - 1),
        Count("projections", split_projections(graph), attentions),
        Count("attentions", fuse_attention(graph), attentions),
    ]
    check_complete(counts)
    products = _quantise_products(graph, graphs) if eight_bits else 0
    counts.append(Count("blocks with windows", tile_windows(graph), blocks))
    check_complete(counts)
    counts.append(Count("products of padding", project_before_padding(graph) + project_after_cutting(graph), 0))
    changes = sum(count.found for count in counts)
    if not changes and not products:
        return None
    allowed = MOST_ERROR if eight_bits else MOST_ROUNDING
    with replacing(destination) as partial:
        partial.write_bytes(graph.finish().SerializeToString(deterministic=True))
        errors = compare(plain, partial, graphs)
        worst = max(errors, key=lambda name: errors[name])
        if not errors[worst] <= allowed:  # written so that NaN fails too
            raise SetupError(
                f"the fast encoder of {plain.name} is not kept: {worst} is off by {errors[worst]:.2%}, "
                f"and {allowed:.2%} is allowed"
            )
    summary = f"{products} products in 8 bits, {changes} other changes" if eight_bits else f"{changes} changes"
    say(f"{destination.name}: {summary}, off by {errors[worst]:.2%}")
    return destination


def _quantise_products(graph: Graph, graphs: Graphs) -> int:
    """Quantises the products that tolerate 8 bits; returns their number."""
    pixels = _pixels(graphs)

    def look(model: Any, names: Sequence[str]) -> Sequence[FloatArray]:
        return _look(model, names, graphs.encoder.image, pixels)

    equalise_channels(graph, look)
    products = choose_products(graph, look)
    to_int8(graph, products)
    return len(products)


def _load(plain: Path) -> Any:
    onnx = onnx_package()
    data = plain.with_name(plain.name + EXTERNAL_DATA_SUFFIX)
    try:
        if data.exists() or plain.stat().st_size > _LARGEST_FILE:
            raise SetupError(f"{plain.name} is too large to be made faster")
        model = onnx.load(str(plain))
        if not model.graph.node:  # protobuf parses almost any bytes as a message of unknown fields
            raise SetupError(f"{plain.name} is not an ONNX file")
        return model
    except SetupError:
        raise
    except Exception as error:  # protobuf's exceptions differ between its releases
        raise SetupError(f"{plain.name} cannot be read as ONNX: {error}") from None


def compare(plain: Path, fast: Path, graphs: Graphs) -> dict[str, float]:
    """Output -> standard deviation of its error over the output's own, on one drawn picture."""
    names = [name for name, _ in graphs.encoder.outputs]
    pixels = _pixels(graphs)
    wanted, given = (_run_file(path, names, graphs.encoder.image, pixels) for path in (plain, fast))
    return {
        name: float(np.std(ours - theirs) / max(float(np.std(theirs)), 1e-12))
        for name, ours, theirs in zip(names, given, wanted, strict=True)
    }


def _run_file(path: Path, outputs: Sequence[str], image: str, pixels: FloatArray) -> list[FloatArray]:
    try:
        return _run(str(path), outputs, image, pixels)
    except Exception as error:  # ONNX Runtime's exceptions share no narrower base class
        raise SetupError(f"{path.name} does not run: {error}") from None


def _run(source: str | bytes, outputs: Sequence[str], image: str, pixels: FloatArray) -> list[FloatArray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.add_session_config_entry(*session_entry())
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    answers: list[FloatArray] = session.run(list(outputs), {image: pixels})
    return answers


def _look(model: Any, names: Sequence[str], image: str, pixels: FloatArray) -> Sequence[FloatArray]:
    """The values of tensors inside a model, for one picture."""
    known = {entry.name for entry in model.graph.output}
    model.graph.output.extend(onnx_package().ValueInfoProto(name=name) for name in names if name not in known)
    try:
        return _run(model.SerializeToString(), names, image, pixels)
    except Exception as error:  # ONNX Runtime's exceptions share no narrower base class
        raise SetupError(f"the encoder does not run: {error}") from None


def _pixels(graphs: Graphs) -> FloatArray:
    """A drawn picture as the encoder takes it, [1,3,side,side] float32."""
    encoder = graphs.encoder
    mean, std = encoder.mean or (0.0, 0.0, 0.0), encoder.std or (1.0, 1.0, 1.0)
    normal = (drawn_picture(graphs.side) - np.array(mean, np.float32)) / np.array(std, np.float32)
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None], dtype=np.float32)


def drawn_picture(side: int) -> npt.NDArray[np.float32]:
    """[side,side,3] in [0,1], always the same: shapes of all sizes, sharp and soft, from clean to noisy.

    Photographs come with an optional package, which may be missing when a model is set up.
    """
    rng = np.random.default_rng(_SEED)
    sharp = Image.new("RGB", (side, side), _colour(rng))
    draw = ImageDraw.Draw(sharp)
    for number in range(_SHAPES):
        corner, size, colour = rng.uniform(-0.05, 1, 2) * side, rng.uniform(0.01, 0.3, 2) * side, _colour(rng)
        box = [*corner, *(corner + size)]
        if number % 3:
            draw.ellipse(box, fill=colour)
        else:
            draw.rectangle(box, fill=colour)
    soft = np.asarray(sharp.filter(ImageFilter.GaussianBlur(side / 256)))
    picture = np.array(sharp, np.float32)
    picture[:, side // 2 :] = soft[:, side // 2 :]
    picture += rng.normal(0, 20, picture.shape) * np.linspace(0, 1, side)[:, None, None]
    return np.clip(picture / 255, 0, 1)


def _colour(rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = (int(value) for value in rng.integers(0, 256, 3))
    return red, green, blue
