"""A plain ONNX encoder -> one that runs faster on a CPU, at a price that is measured before it is kept.

First the rewrites that change nothing (see :mod:`~triton_sam.export.graph_rewrites`), then wide matrix products in 8
bits. The file holds operators of ONNX Runtime's CPU provider and no layouts of one machine, so that it runs on every
CPU. It is fastest where 8-bit instructions are (VNNI, AMX).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image, ImageDraw, ImageFilter

from triton_sam.errors import SetupError
from triton_sam.export.graph_rewrites import (
    CONTRIB,
    FloatArray,
    Graph,
    fuse_attention,
    join_convolutions,
    onnx_package,
    split_projections,
)
from triton_sam.specs import EXTERNAL_DATA_SUFFIX, Graphs, Precision

#: For every session on the result. CPUs without VNNI add pairs of 8-bit products in 16 bits, which overflows; with this
#: they take a slower way. Others ignore it.
SESSION_ENTRY = ("session.x64quantprecision", "1")
#: Narrower products move more bytes than they multiply: little is gained.
LEAST_WIDTH = 384
#: The first part of the way stays in float32: every later layer carries its error on, and the fine features of SAM2
#: leave the network there.
EARLY_SHARE = 0.35
#: Standard deviation of an output's error over the output's own. Masks of real pictures agree to an IoU of 0.98 on
#: average at 0.02; drawn ones are a little harder.
MOST_ERROR = 0.045
_LEVELS = 127
#: protobuf, and with it the search for shapes, ends at 2 GiB.
_LARGEST_FILE = 1_800_000_000
_SHAPES = 140
_SEED = 0


def make_cpu_encoder(
    plain: Path, destination: Path, graphs: Graphs, say: Callable[[str], None] = lambda _: None
) -> Path | None:
    """Writes the fast twin of an encoder to ``destination``.

    Args:
        plain: an encoder in float32, as it is served.
        graphs: its description; names, the side, the pixel range and the precision are read.
        say: takes one line when it is done.

    Returns:
        ``destination``, or None where nothing in the graph could be made faster: then no file is written.

    Raises:
        SetupError: the result is not close enough to the original, or ``plain`` cannot be read; no file is written.
    """
    if graphs.precision is not Precision.FP32:
        return None
    graph = _load(plain)
    changes = join_convolutions(graph) + split_projections(graph) + fuse_attention(graph)
    products = wide_products(graph)
    if not changes and not products:
        return None
    to_int8(graph, products)
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(graph.finish().SerializeToString(deterministic=True))
        errors = compare(plain, partial, graphs)
        worst = max(errors, key=lambda name: errors[name])
        if not errors[worst] <= MOST_ERROR:  # so that NaN does not pass
            raise SetupError(
                f"the fast encoder of {plain.name} is not kept: {worst} is off by {errors[worst]:.1%} "
                f"where {MOST_ERROR:.1%} is allowed"
            )
        partial.replace(destination)
    except OSError as error:
        raise SetupError(f"{destination.name} cannot be written: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    say(f"{destination.name}: {len(products)} products in 8 bits, {changes} other changes, off by {errors[worst]:.1%}")
    return destination


def _load(plain: Path) -> Graph:
    onnx = onnx_package()
    data = plain.with_name(plain.name + EXTERNAL_DATA_SUFFIX)
    try:
        if data.exists() or plain.stat().st_size > _LARGEST_FILE:
            raise SetupError(f"{plain.name} is too large to be made faster")
        model = onnx.load(str(plain))
        if not model.graph.node:  # protobuf takes almost any bytes for a message of unknown fields
            raise SetupError(f"{plain.name} is no ONNX file")
        return Graph(model)
    except SetupError:
        raise
    except Exception as error:  # protobuf's exceptions differ between its releases
        raise SetupError(f"{plain.name} cannot be read as ONNX: {error}") from None


def wide_products(graph: Graph) -> list[Any]:
    """The MatMul nodes that 8 bits make faster at a small price: constant weights [K,N], wide, and not early."""
    depths = graph.depths()
    return [
        node
        for node in graph.nodes
        if node.op_type == "MatMul"
        and (weights := graph.weights(node.input[1], 2)) is not None
        and min(weights.shape) >= LEAST_WIDTH
        and depths[node.output[0]] >= EARLY_SHARE
    ]


def to_int8(graph: Graph, products: Sequence[Any]) -> None:
    """Products with constant weights -> 8 bits, a scale for each channel; what they take is quantised as it comes.

    One operator does it all, bias included; the general tool leaves five in a row, which eat up what is gained.
    """
    for node in products:
        weights = graph.weights(node.input[1], 2)
        if weights is None:
            raise ValueError(f"{node.name} has no constant weights")
        add = graph.sole_consumer(node.output[0], "Add")
        found = None if add is None else graph.matmul_with_bias(add.output[0])
        output, bias = (node.output[0], "") if found is None else (add.output[0], found[2])
        scales = np.abs(weights).max(axis=0) / np.float32(_LEVELS)
        scales[scales == 0] = 1.0
        inputs = [
            node.input[0],
            graph.add_constant(f"{output}/int8", np.rint(weights / scales).astype(np.int8)),
            graph.add_constant(f"{output}/scales", scales),
            graph.add_constant(f"{output}/zeros", np.zeros(len(scales), np.int8)),
            bias,
        ]
        new = graph.node("DynamicQuantizeMatMul", inputs, [output], CONTRIB)
        graph.replace([node] if found is None else [node, add], [new])


def compare(plain: Path, fast: Path, graphs: Graphs) -> dict[str, float]:
    """Output -> standard deviation of its error over its own, on one drawn picture."""
    names = [name for name, _ in graphs.encoder.outputs]
    pixels = _pixels(graphs)
    wanted, given = (_run(path, names, graphs.encoder.image, pixels) for path in (plain, fast))
    return {
        name: float(np.std(ours - theirs) / max(float(np.std(theirs)), 1e-12))
        for name, ours, theirs in zip(names, given, wanted, strict=True)
    }


def _run(path: Path, outputs: Sequence[str], image: str, pixels: FloatArray) -> list[FloatArray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.add_session_config_entry(*SESSION_ENTRY)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        answers: list[FloatArray] = session.run(list(outputs), {image: pixels})
    except Exception as error:  # ONNX Runtime's exceptions share no base class but this
        raise SetupError(f"{path.name} does not run: {error}") from None
    return answers


def _pixels(graphs: Graphs) -> FloatArray:
    """A drawn picture as the encoder takes it, [1,3,side,side] float32."""
    encoder = graphs.encoder
    mean, std = encoder.mean or (0.0, 0.0, 0.0), encoder.std or (1.0, 1.0, 1.0)
    normal = (drawn_picture(graphs.side) - np.array(mean, np.float32)) / np.array(std, np.float32)
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None], dtype=np.float32)


def drawn_picture(side: int) -> npt.NDArray[np.float32]:
    """[side,side,3] in [0,1], always the same: shapes of all sizes, sharp and soft, from clean to noisy.

    Photographs are an extra package, which need not be there when a model is set up.
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
