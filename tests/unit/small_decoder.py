"""A decoder as exporters write it, small: two attentions between tokens and an image, upscaling, a mask prompt."""

from __future__ import annotations

from typing import Any

import numpy as np

from triton_sam.models.specs import DecoderGraph, EncoderGraph, Graphs

GRID, WIDTH, HEADS, INNER, MASKS = 16, 12, 2, 8, 3
PLACES, DEPTH = GRID * GRID, INNER // HEADS
CHANNELS = (6, 5)
FINE, FINEST = (1, CHANNELS[0], 2 * GRID, 2 * GRID), (1, CHANNELS[1], 4 * GRID, 4 * GRID)

GRAPHS = Graphs(
    side=64,
    encoder=EncoderGraph(
        image="image",
        mean=None,
        std=None,
        embedding="embedding",
        outputs=(("embedding", (1, WIDTH, GRID, GRID)), ("fine", FINE), ("finest", FINEST)),
    ),
    decoder=DecoderGraph(mask_side=4 * GRID, batched=True),
)


class SmallDecoder:
    """Writes the nodes one after another.

    Args:
        rank: of the image's tokens: 3, or 4 with an axis of one, as transformers has it.
        known_positions: whether what is added to the image is the same for every image.
        norm: "written out" in ten nodes, or "turned": one node between two transposes.
        stride: of the transposed convolutions.
        softmax_axis: the last in all true decoders.
        spelling: of the attentions: "scaled" multiplies queries and keys with the root of a factor, as torch exports
            its own attention; "reshaped" gives the result its own shape once more, as transformers 5.23.0 does;
            "eager" transposes the keys twice and divides the scores.
        unknown: which attention, "tokens" or "image", does something with its scores that no decoder does.

    Prompts without a point get another token, as in true decoders.
    """

    def __init__(
        self,
        *,
        rank: int = 3,
        known_positions: bool = True,
        norm: str = "written out",
        stride: int = 2,
        softmax_axis: int = -1,
        spelling: str = "scaled",
        unknown: str = "",
    ) -> None:
        import onnx

        self._onnx, self._rng = onnx, np.random.default_rng(3)
        self._rank, self._known, self._norm, self._stride = rank, known_positions, norm, stride
        self._axis, self._spelling, self._unknown = softmax_axis, spelling, unknown
        self._nodes: list[Any] = []
        self._constants: dict[str, np.ndarray] = {}

    def model(self) -> Any:
        self._write()
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        inputs: dict[str, list[Any]] = {
            "embedding": ["images", WIDTH, GRID, GRID],
            "fine": ["images", *FINE[1:]],
            "finest": ["images", *FINEST[1:]],
            "point_coords": ["prompts", "points", 2],
            "point_labels": ["prompts", "points"],
            "mask_input": ["prompts", 1, 4 * GRID, 4 * GRID],
            "has_mask_input": [1],
        }
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, kind, None) for name in ("masks", "iou_predictions")],
            [self._onnx.numpy_helper.from_array(array, name) for name, array in self._constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _noise(self, *shape: int) -> str:
        return self._constant((self._rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32))

    def _constant(self, array: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants[name] = np.asarray(array)
        return name

    def _shape(self, *sizes: int) -> str:
        return self._constant(np.array(sizes, np.int64))

    def _node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"t{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def _linear(self, tensor: str, inside: int, outside: int) -> str:
        product = self._node("MatMul", tensor, self._noise(inside, outside))
        return self._node("Add", self._noise(outside), product)

    def _write(self) -> None:
        node = self._node
        tokens = self._tokens()
        image, positions, sizes = self._image()
        asked = node("Add", image, positions)
        tokens = node("Add", tokens, self._attention(tokens, asked, image, "tokens"))
        image = node("Add", image, self._attention(asked, tokens, tokens, "image"))
        image = node("LayerNormalization", image, self._noise(WIDTH), self._noise(WIDTH), axis=-1)
        turned = node("Transpose", image, perm=[0, 2, 1] if self._rank == 3 else [0, 1, 3, 2])
        pixels = node("Reshape", turned, sizes)
        pixels = node("Add", self._upscaled(pixels, WIDTH, CHANNELS[0]), "fine")
        pixels = self._gelu(self._normed(pixels, CHANNELS[0]))
        pixels = self._gelu(node("Add", self._upscaled(pixels, *CHANNELS), "finest"))
        rows = node("Reshape", pixels, self._shape(0, 0, -1))
        if self._rank == 4:
            tokens = node("Squeeze", tokens, self._shape(1))
        own = node("Slice", tokens, self._shape(0), self._shape(MASKS + 1), self._shape(1))
        product = node("MatMul", self._linear(own, WIDTH, CHANNELS[1]), rows)
        height = node("Slice", node("Shape", pixels), self._shape(2), self._shape(4))
        shape = node("Concat", node("Slice", node("Shape", product), self._shape(0), self._shape(2)), height, axis=0)
        masks = node("Reshape", product, shape)
        node("Slice", masks, self._shape(1), self._shape(99), self._shape(1), output="masks")
        scores = node("ReduceMean", node("Slice", own, self._shape(1), self._shape(99), self._shape(1)), axes=[2])
        node("Reshape", scores, self._shape(0, -1), output="iou_predictions")

    def _tokens(self) -> str:
        node = self._node
        placed = node("MatMul", node("Div", "point_coords", self._constant(np.float32(64))), self._noise(2, WIDTH))
        label = node("Mul", node("Unsqueeze", "point_labels", self._shape(2)), self._noise(1, WIDTH))
        prompts = node("Slice", node("Shape", "point_labels"), self._shape(0), self._shape(1))
        shape = node("Concat", prompts, self._shape(1), self._shape(1), axis=0)
        own = node("Expand", self._noise(1, MASKS + 1, WIDTH), shape)
        tokens = node("Concat", own, node("Add", placed, label), axis=1)
        count = node("Gather", node("Shape", "point_labels"), self._constant(np.int64(1)))
        none = node("Cast", node("Equal", count, self._constant(np.int64(0))), to=1)
        tokens = node("Add", tokens, node("Mul", none, self._noise(1, 1, WIDTH)))
        return tokens if self._rank == 3 else node("Unsqueeze", tokens, self._shape(1))

    def _image(self) -> tuple[str, str, str]:
        """(image, positions, the image's shape with the channels first)."""
        node = self._node
        logits = node("Mul", "mask_input", self._constant(np.float32(1 / 16)))
        read = node("Conv", logits, self._noise(WIDTH, 1, 4, 4), self._noise(WIDTH), strides=[4, 4])
        absent = node("Sub", self._constant(np.float32(1)), "has_mask_input")
        dense = node("Add", node("Mul", "has_mask_input", read), node("Mul", absent, self._noise(1, WIDTH, 1, 1)))
        summed = node("Add", "embedding", dense)
        sizes = node("Shape", summed)
        prompts = node("Slice", node("Shape", "point_labels"), self._shape(0), self._shape(1))
        repeats = node("Concat", prompts, self._shape(1, 1, 1), axis=0)
        places = node("Tile", self._noise(1, WIDTH, GRID, GRID), repeats)
        if not self._known:
            places = node("Mul", places, node("Sigmoid", "embedding"))
        return self._as_tokens(summed), self._as_tokens(places), sizes

    def _as_tokens(self, pixels: str) -> str:
        if self._rank == 3:
            rows = self._node("Reshape", pixels, self._shape(0, WIDTH, -1))
            return self._node("Transpose", rows, perm=[0, 2, 1])
        rows = self._node("Reshape", pixels, self._shape(0, 1, WIDTH, -1))
        return self._node("Transpose", rows, perm=[0, 1, 3, 2])

    def _attention(self, query: str, key: str, value: str, asking: str) -> str:
        node = self._node
        heads = []
        for tensor, order in ((query, [0, 2, 1, 3]), (key, [0, 2, 3, 1]), (value, [0, 2, 1, 3])):
            length = PLACES if (asking == "image") == (tensor == query) else -1
            # Tokens are as many as they are: in rank 4 the axis of one takes the place of the batch's.
            cut = self._shape(0, 0, HEADS, DEPTH) if self._rank == 3 else self._cut(tensor, length)
            shaped = node("Reshape", self._linear(tensor, WIDTH, INNER), cut)
            heads.append(node("Transpose", shaped, perm=order))
        scores = self._scores(*heads[:2])
        if self._unknown == asking:
            scores = node("Tanh", scores)
        mixed = node("MatMul", node("Softmax", scores, axis=self._axis), heads[2])
        if self._spelling == "reshaped":
            mixed = node("Reshape", mixed, node("Shape", mixed))
        back = node("Transpose", mixed, perm=[0, 2, 1, 3])
        merged = self._shape(0, 0, INNER) if self._rank == 3 else self._merge(back)
        return self._linear(node("Reshape", back, merged), INNER, WIDTH)

    def _scores(self, query: str, key: str) -> str:
        """[B,heads,Q,d] and [B,heads,d,K] -> [B,heads,Q,K]."""
        node = self._node
        # The root of the size, worked out anew in every run.
        size = node("Cast", node("Slice", node("Shape", query), self._shape(3), self._shape(4)), to=1)
        root = node("Sqrt", size)
        if self._spelling == "eager":
            turned = node("Transpose", node("Transpose", key, perm=[0, 1, 3, 2]), perm=[0, 1, 3, 2])
            return node("Div", node("MatMul", query, turned), root)
        factor = node("Sqrt", node("Div", self._constant(np.float32(1)), root))
        return node("MatMul", node("Mul", query, factor), node("Mul", key, factor))

    def _cut(self, tensor: str, length: int) -> str:
        sizes = self._node("Shape", tensor)
        first = self._node("Slice", sizes, self._shape(0), self._shape(1))
        tokens = self._node("Slice", sizes, self._shape(2), self._shape(3))
        return self._node("Concat", first, tokens, self._shape(HEADS, DEPTH), axis=0)

    def _merge(self, back: str) -> str:
        sizes = self._node("Shape", back)
        first = self._node("Slice", sizes, self._shape(0), self._shape(1))
        tokens = self._node("Slice", sizes, self._shape(1), self._shape(2))
        return self._node("Concat", first, self._shape(1), tokens, self._shape(INNER), axis=0)

    def _upscaled(self, pixels: str, inside: int, outside: int) -> str:
        side = 2 if self._stride == 2 else 1
        kernel = self._noise(inside, outside, side, side)
        done = self._node(
            "ConvTranspose", pixels, kernel, self._noise(outside), strides=[self._stride] * 2, kernel_shape=[side] * 2
        )
        if self._stride == 2:
            return done
        scales = self._constant(np.array([1, 1, 2, 2], np.float32))
        return self._node("Resize", done, "", scales, mode="nearest")

    def _normed(self, pixels: str, channels: int) -> str:
        node = self._node
        if self._norm == "turned":
            turned = node("Transpose", pixels, perm=[0, 2, 3, 1])
            normed = node("LayerNormalization", turned, self._noise(channels), self._noise(channels), axis=-1)
            return node("Transpose", normed, perm=[0, 3, 1, 2])
        centred = node("Sub", pixels, node("ReduceMean", pixels, axes=[1]))
        variance = node("ReduceMean", node("Pow", centred, self._constant(np.float32(2))), axes=[1])
        root = node("Sqrt", node("Add", variance, self._constant(np.float32(1e-6))))
        scaled = node("Mul", self._noise(channels, 1, 1), node("Div", centred, root))
        return node("Add", scaled, self._noise(channels, 1, 1))

    def _gelu(self, tensor: str) -> str:
        node = self._node
        erf = node("Erf", node("Div", tensor, self._constant(np.float32(np.sqrt(2)))))
        doubled = node("Mul", tensor, node("Add", erf, self._constant(np.float32(1))))
        return node("Mul", doubled, self._constant(np.float32(0.5)))
