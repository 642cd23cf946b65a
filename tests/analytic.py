"""A model whose masks are known in closed form: an ONNX pair of a few kB that replaces SAM2-tiny.

The encoder pools colours. The decoder selects the cells of similar colour in a disc around each positive point,
intersected with boxes, minus discs around negative points, plus a given mask. :func:`expected_mask` computes the same
in numpy from the picture itself. Tests therefore find a shifted pixel, swapped sides or a wrong label, which random
weights would hide.

An encode takes milliseconds. Pictures of :func:`slow_picture` take about as long as with the real network on two cores,
for tests that need an encode or a click in flight.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.integration.reference import bilinear
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import DECODER_FILE, ENCODER_FILE, DecoderGraph, EncoderGraph, Graphs, ModelSpec
from triton_sam.repository.segmenters import write_models

SIDE, CELLS = 1024, 256
_CELL = SIDE // CELLS
#: Radii of the three masks' discs, in model pixels; the first mask has the best score.
RADII = (120.0, 200.0, 320.0)
#: Radius of the disc that a negative point removes, in model pixels.
NEGATIVE_RADIUS = 90.0
#: Largest distance of two similar colours in [0,1]^3.
LIKENESS = 0.5
LIMIT = 32.0
#: Logits per model pixel and per colour distance: one cell away from the border is one logit.
_PER_PIXEL, _PER_COLOUR = 1.0 / _CELL, 40.0
#: Processor time of an encode of a slow picture, and of a click on it, in seconds on any machine.
_SLOW_ENCODE, _SLOW_CLICK = 0.6, 0.05
_OUTPUTS = (
    ("image_embeddings", (1, 256, 64, 64)),
    ("high_res_feats_0", (1, 32, 256, 256)),
    ("high_res_feats_1", (1, 64, 128, 128)),
)


def analytic_spec() -> ModelSpec:
    """SAM2-tiny's catalogue row with the analytic graphs instead of the published ones."""
    encoder = EncoderGraph("image", None, None, "image_embeddings", _OUTPUTS)
    optional = ("high_res_feats_0", "high_res_feats_1", "mask_input", "has_mask_input")
    decoder = DecoderGraph(mask_side=CELLS, optional=optional)
    return dataclasses.replace(get_spec(DEFAULT_MODEL), graphs=Graphs(SIDE, encoder, decoder, exported=True))


def write_analytic(repository: Path, folder: Path, *, name: str = "sam2") -> Path:
    """Writes the model to a repository and returns it; the graphs go to ``folder``."""
    encoder, decoder = write_graphs(folder)
    write_models(analytic_spec(), encoder, decoder, repository, name=name)
    return repository


def write_graphs(folder: Path) -> tuple[Path, Path]:
    """Writes both graphs to ``folder``; returns the encoder's and the decoder's file."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / ENCODER_FILE, folder / DECODER_FILE
    for path, model in zip(paths, (encoder_graph(), _decoder()), strict=True):
        onnx.checker.check_model(model)
        path.write_bytes(model.SerializeToString(deterministic=True))
    return paths


# -- the expected masks --------------------------------------------------------------------------------------------


def expected_logits(
    picture: Image.Image,
    points: Sequence[Sequence[float]] = (),
    labels: Sequence[int] | None = None,
    box: Sequence[float] | None = None,
    mask_input: np.ndarray | None = None,
    radius: float = RADII[0],
) -> np.ndarray:
    """[256,256] logits of one object; coordinates in pixels of the picture."""
    colours = _cell_colours(picture.convert("RGB").tobytes(), *picture.size)
    centres = (np.arange(CELLS) + 0.5) * _CELL
    scale = SIDE / picture.width, SIDE / picture.height
    found = np.full((CELLS, CELLS), -LIMIT)
    cut = np.full((CELLS, CELLS), LIMIT)
    kinds = [1] * len(points) if labels is None else labels
    for (x, y), label in zip(points, kinds, strict=True):
        x, y = x * scale[0], y * scale[1]
        distance = np.hypot(centres[None, :] - x, centres[:, None] - y)
        if label == 1:
            own = colours[min(int(y // _CELL), CELLS - 1), min(int(x // _CELL), CELLS - 1)]
            likeness = (LIKENESS - np.sqrt(((colours - own) ** 2).sum(axis=-1))) * _PER_COLOUR
            found = np.maximum(found, np.minimum((radius - distance) * _PER_PIXEL, likeness))
        else:
            cut = np.minimum(cut, (distance - NEGATIVE_RADIUS) * _PER_PIXEL)
    if box is not None:
        left, top, right, bottom = (value * scale[index % 2] for index, value in enumerate(box))
        inside = np.minimum(
            np.minimum(centres - left, right - centres)[None, :], np.minimum(centres - top, bottom - centres)[:, None]
        )
        cut = np.minimum(cut, inside * _PER_PIXEL)
        if 1 not in kinds:
            found[:] = LIMIT
    if mask_input is not None:
        found = np.maximum(found, mask_input)
    return np.clip(np.minimum(found, cut), -LIMIT, LIMIT)


@functools.lru_cache(maxsize=4)
def _cell_colours(rgb: bytes, width: int, height: int) -> np.ndarray:
    """[256,256,3] in [0,1]; cached, because tests use one picture again and again, and this is the slowest part."""
    picture = Image.frombytes("RGB", (width, height), rgb)
    squashed = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR), np.float64) / 255.0
    return np.asarray(squashed.reshape(CELLS, _CELL, CELLS, _CELL, 3).mean(axis=(1, 3)))


def expected_mask(picture: Image.Image, **prompt: Any) -> np.ndarray:
    """[H,W] bool at the picture's size: the mask that a server must return (see :func:`expected_logits`)."""
    return bilinear(expected_logits(picture, **prompt), *picture.size) > 0


def expected_score(picture: Image.Image, first: Sequence[float], index: int = 0) -> float:
    """Predicted IoU of mask ``index`` for an object whose first point (a box's first corner) is ``first``."""
    return 0.9 - 0.1 * index + 0.05 * first[0] / picture.width


def assert_mask(found: np.ndarray, picture: Image.Image, **prompt: Any) -> None:
    """Fails if a mask differs from the expected one, except for pixels exactly on its border."""
    logits = bilinear(expected_logits(picture, **prompt), *picture.size)
    assert found.shape == logits.shape, f"{found.shape} instead of {logits.shape}"
    wrong = (found != (logits > 0)) & (np.abs(logits) > 1e-3)
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} pixels are wrong, the first at {np.argwhere(wrong)[0]} (y, x)"
    )


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def slowed(picture: Image.Image) -> Image.Image:
    """The same picture with a blue corner, an eighth of its sides: encoding it and clicks on it are slow."""
    pixels = np.array(picture.convert("RGB"))
    pixels[: max(1, picture.height // 8), : max(1, picture.width // 8)] = (0, 0, 255)
    return Image.fromarray(pixels)


def fresh_picture(number: int) -> Image.Image:
    """A picture of one colour, different for each number, so that no other test has sent it."""
    return Image.new("RGB", (64, 64), (number % 256, 200, number // 256))


def slow_picture(number: int) -> bytes:
    """A PNG that is slow to encode and to click on, different for each number."""
    return png(slowed(fresh_picture(number)))


# -- the graphs ----------------------------------------------------------------------------------------------------


class GraphBuilder:
    """Collects the nodes and constants of a graph; a call adds a node and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: Any, kind: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, kind), name))
        return name

    def __call__(self, operator: str, *inputs: str, gives: str = "", **attributes: Any) -> str:
        output = gives or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def whole(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def slow(self, colours: str, seconds: float, value: str, to: str) -> None:
        """Copies ``value`` to ``to``, and takes ``seconds`` for it if the first cell [1,3,h,w] is pure blue."""
        corner = self("Slice", colours, self.whole(0, 0), self.whole(1, 1), self.whole(2, 3))
        blue = self("Reshape", self("Slice", corner, self.whole(2), self.whole(3), self.whole(1)), self.whole(1))
        others = self("Slice", corner, self.whole(0), self.whole(2), self.whole(1))
        brightest = self("Reshape", self("ReduceMax", others, keepdims=1), self.whole(1))
        pure = self("Greater", self("Sub", blue, brightest), self.constant([0.99]))
        trips = self(
            "Reshape", self("Mul", self("Cast", pure, to=TensorProto.INT64), self.whole(_steps(seconds))), self.whole(1)
        )
        number = self("Loop", trips, "", self.constant([0.0]), body=_counting())
        # Adds zero times the loop's count, which makes the output depend on the loop.
        self("Add", value, self("Mul", number, self.constant([0.0])), gives=to)


def _steps(seconds: float) -> int:
    """The number of iterations of a counting loop that take ``seconds`` here: machines differ by a factor of ten."""
    return max(1, round(seconds / _step_seconds()))


@functools.cache
def _step_seconds() -> float:
    """Processor time of one iteration, which does not depend on other load."""
    build, steps = GraphBuilder(), 20_000
    build("Loop", build.whole(steps), "", build.constant([0.0]), gives="counted", body=_counting())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = graph_model(build, "loop", [], [tensor_info("counted", 1)], []).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    begun = time.process_time()
    session.run(None, {})
    return (time.process_time() - begun) / steps


def _counting() -> Any:
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    nodes = [helper.make_node("Add", ["before", "one"], ["after"]), helper.make_node("Identity", ["going"], ["on"])]
    inputs = [
        helper.make_tensor_value_info("step", TensorProto.INT64, []),
        helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        helper.make_tensor_value_info("before", TensorProto.FLOAT, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("after", TensorProto.FLOAT, [1]),
    ]
    return helper.make_graph(nodes, "counting", inputs, outputs, [one])


def tensor_info(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def graph_model(
    build: GraphBuilder, name: str, inputs: Sequence[Any], outputs: Sequence[Any], defaults: Sequence[Any]
) -> Any:
    graph = helper.make_graph(build.nodes, name, list(inputs), list(outputs), [*build.constants, *defaults])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def encoder_graph(fine: str = "") -> Any:
    """Colours [1,3,h,w] on three grids, each followed by a channel of ones and zeros up to its width.

    Args:
        fine: name of one more output, the finest of them without zeros, [1,4,256,256]; none if it is empty.
    """
    build = GraphBuilder()
    ones = build.constant(np.ones((1, 1, 1, 1)))
    grids = {"high_res_feats_0": 4, "high_res_feats_1": 8, "image_embeddings": 16}
    for (name, (_, channels, side, _)), pool in ((entry, grids[entry[0]]) for entry in _OUTPUTS):
        colours = build("AveragePool", "image", kernel_shape=[pool, pool], strides=[pool, pool])
        present = build("Expand", ones, build.whole(1, 1, side, side))
        filled = build("Concat", colours, present, axis=1)
        empty = build.whole(0, 0, 0, 0, 0, channels - 4, 0, 0)
        if fine and name == "high_res_feats_0":
            build("Identity", filled, gives=fine)
        if name == "image_embeddings":
            build.slow(colours, _SLOW_ENCODE, build("Pad", filled, empty), to=name)
        else:
            build("Pad", filled, empty, gives=name)
    inputs = [tensor_info("image", 1, 3, SIDE, SIDE)]
    outputs = [*_OUTPUTS, *([(fine, (1, 4, CELLS, CELLS))] if fine else [])]
    return graph_model(build, "analytic_encoder", inputs, [tensor_info(name, *shape) for name, shape in outputs], [])


def _decoder() -> Any:
    build = GraphBuilder()
    colours = _colours(build)
    # One more point with the label -1: a prompt of a mask only has no points, and an empty list cannot be reduced.
    padding = build.constant(-1.0)
    points = build("Pad", "point_coords", build.whole(0, 0, 0, 0, 1, 0), padding)
    labels = build("Unsqueeze", build("Pad", "point_labels", build.whole(0, 0, 0, 1), padding), build.whole(2, 3))
    across, down = (
        build("Unsqueeze", build("Gather", points, build.constant(axis, np.int64), axis=2), build.whole(2, 3))
        for axis in (0, 1)
    )
    centres = (np.arange(CELLS) + 0.5) * _CELL
    right = build("Sub", build.constant(centres.reshape(1, 1, 1, CELLS)), across)
    below = build("Sub", build.constant(centres.reshape(1, 1, CELLS, 1)), down)
    distance = build("Sqrt", build("Add", build("Mul", right, right), build("Mul", below, below)))
    per_pixel, limit, least = build.constant(_PER_PIXEL), build.constant(LIMIT), build.constant(-LIMIT)

    def where(label: float, value: str, otherwise: str) -> str:
        return build("Where", build("Equal", labels, build.constant(label)), value, otherwise)

    likeness = _likeness(build, colours, across, down)
    away = build("Mul", build("Sub", distance, build.constant(NEGATIVE_RADIUS)), per_pixel)
    first = build("Mul", build("Min", right, below), per_pixel)
    second = build("Mul", build("Neg", build("Max", right, below)), per_pixel)
    cut = build("Min", where(0.0, away, limit), where(2.0, first, limit), where(3.0, second, limit))
    cut = build("ReduceMin", cut, axes=[1], keepdims=1)
    is_positive = build("Cast", build("Equal", labels, build.constant(1.0)), to=TensorProto.FLOAT)
    is_box = build("Cast", build("Equal", labels, build.constant(2.0)), to=TensorProto.FLOAT)
    any_positive = build("ReduceMax", is_positive, axes=[1], keepdims=1)
    any_box = build("ReduceMax", is_box, axes=[1], keepdims=1)
    box_alone = build("Greater", any_box, any_positive)
    given = build(
        "Where", build("Greater", "has_mask_input", build.constant([0.5])), "mask_input", build.constant([-LIMIT])
    )
    masks = []
    for radius in RADII:
        inside = build("Mul", build("Sub", build.constant(radius), distance), per_pixel)
        found = build("ReduceMax", where(1.0, build("Min", inside, likeness), least), axes=[1], keepdims=1)
        found = build("Max", build("Where", box_alone, limit, found), given)
        masks.append(build("Clip", build("Min", found, cut), least, limit))
    build("Concat", *masks, axis=1, gives="masks")
    share = build("Slice", points, build.whole(0, 0), build.whole(1, 1), build.whole(1, 2))  # x of the first point
    share = build("Mul", build("Reshape", share, build.whole(-1, 1)), build.constant(0.05 / SIDE))
    scores = build("Add", share, build.constant([[0.9, 0.8, 0.7]]))
    build.slow(colours, _SLOW_CLICK, scores, to="iou_predictions")
    inputs = [
        tensor_info("image_embeddings", 1, 256, 64, 64),
        tensor_info("high_res_feats_0", 1, 32, "h0", "w0"),
        tensor_info("high_res_feats_1", 1, 64, "h1", "w1"),
        tensor_info("point_coords", "B", "P", 2),
        tensor_info("point_labels", "B", "P"),
        tensor_info("mask_input", "b", 1, "mh", "mw"),
        tensor_info("has_mask_input", 1),
    ]
    outputs = [tensor_info("masks", "B", 3, CELLS, CELLS), tensor_info("iou_predictions", "B", 3)]
    # An initializer with an input's name is its default.
    defaults = [
        numpy_helper.from_array(np.zeros(shape, np.float32), name)
        for name, shape in (
            ("high_res_feats_0", (1, 32, 1, 1)),
            ("high_res_feats_1", (1, 64, 1, 1)),
            ("mask_input", (1, 1, 1, 1)),
            ("has_mask_input", (1,)),
        )
    ]
    return graph_model(build, "analytic_decoder", inputs, outputs, defaults)


def _colours(build: GraphBuilder) -> str:
    """[1,3,256,256]: the fine colours, or those of the embedding if the fine ones are left out.

    The middle grid must be given if the fine one is: without it no colours are similar.
    """

    def channels(name: str, first: int, last: int) -> str:
        return build("Slice", name, build.whole(first), build.whole(last), build.whole(1))

    coarse = build(
        "Resize", channels("image_embeddings", 0, 3), "", build.constant([1.0, 1.0, 4.0, 4.0]), mode="nearest"
    )
    has_fine = build("ReduceMax", channels("high_res_feats_0", 3, 4), keepdims=1)
    has_middle = build("ReduceMax", channels("high_res_feats_1", 3, 4), keepdims=1)
    fine = build("Add", channels("high_res_feats_0", 0, 3), build("Mul", coarse, build("Sub", has_middle, has_fine)))
    absent = build("Sub", build.constant(np.ones((1, 1, 1, 1))), has_middle)
    return build("Add", fine, build("Mul", coarse, absent))


def _likeness(build: GraphBuilder, colours: str, across: str, down: str) -> str:
    """[B,P,256,256]: similarity of every cell to the colour under each point, as logits."""
    most = build.constant(CELLS - 1, np.int64), build.constant(0, np.int64)

    def cell(coordinate: str) -> str:
        index = build("Floor", build("Mul", coordinate, build.constant(1.0 / _CELL)))
        return build("Max", build("Min", build("Cast", index, to=TensorProto.INT64), most[0]), most[1])

    flat = build("Add", build("Mul", cell(down), build.constant(CELLS, np.int64)), cell(across))  # [B,P,1,1]
    rows = build("Reshape", colours, build.whole(3, CELLS * CELLS))
    own = build("Gather", rows, flat, axis=1)  # [3,B,P,1,1]
    grid = build("Reshape", colours, build.whole(3, 1, 1, CELLS, CELLS))
    difference = build("Sub", grid, own)
    squares = build("ReduceSum", build("Mul", difference, difference), build.whole(0), keepdims=0)
    likeness = build("Sub", build.constant(LIKENESS), build("Sqrt", squares))
    return build("Mul", likeness, build.constant(_PER_COLOUR))
