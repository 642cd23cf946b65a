"""Exports with one error each, made by editing correct graphs.

Weights are found by their values and not by their names, so that a graph's names do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
Change = Callable[[Array], Array]
_MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
_STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)


class Surgery:
    """Edits one graph; the network has the weights that the graph holds."""

    def __init__(self, graph: Path, network: Any) -> None:
        self.model = onnx.load(str(graph))
        self._weights = {name: tensor.detach().cpu().numpy() for name, tensor in network.named_parameters()}
        self.positions = network.get_image_wide_positional_embeddings().detach().cpu().numpy()

    def save(self, target: Path) -> Path:
        onnx.save(self.model, str(target))
        return target

    def _constants(self) -> Iterator[onnx.TensorProto]:
        yield from self.model.graph.initializer
        for node in self.model.graph.node:
            if node.op_type == "Constant":
                yield from (attribute.t for attribute in node.attribute if attribute.name == "value")

    def replace(self, before: Array, after: Array) -> None:
        """Replaces all constants with the values of ``before``, in any layout of an exporter, by ``after``."""
        found = 0
        for tensor in self._constants():
            if np.prod(tensor.dims) != before.size:
                continue
            array = numpy_helper.to_array(tensor)
            new = next((to for at, to in _layouts(before, after) if _same(array.ravel(), at.ravel())), None)
            if new is None:
                continue
            new = new.reshape(array.shape).astype(array.dtype)
            tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))
            found += 1
        assert found, "the graph does not hold these numbers as they are: damage another weight"
        assert not np.array_equal(before, after)

    def change(self, weight: str, change: Change) -> None:
        self.replace(self._weights[weight], change(self._weights[weight]))

    def swap(self, first: str, second: str) -> None:
        one, other = self._weights[first], self._weights[second]
        marked = one + 1000  # so that the second replacement does not find the values of the first
        self.replace(one, marked)
        self.replace(other, one)
        self.replace(marked, other)

    def through(self, name: str, operator: str, constant: Array, **attributes: int) -> str:
        """Applies an operator to a tensor before all its consumers; returns the name of the result."""
        graph = self.model.graph
        altered = f"{name}_altered"
        for node in graph.node:
            for index, used in enumerate(node.input):
                if used == name:
                    node.input[index] = altered
        graph.initializer.append(numpy_helper.from_array(constant, f"{altered}_by"))
        made_at = [index + 1 for index, node in enumerate(graph.node) if name in node.output]
        node = helper.make_node(operator, [name, f"{altered}_by"], [altered], **attributes)
        graph.node.insert(made_at[0] if made_at else 0, node)
        return altered

    def threshold(self, before: float, after: float) -> None:
        for tensor in self._constants():
            if not tensor.dims or list(tensor.dims) == [1]:
                array = numpy_helper.to_array(tensor)
                if array.dtype.kind == "f" and np.isclose(array.item(), before, rtol=1e-6):
                    tensor.CopyFrom(numpy_helper.from_array(np.full_like(array, after), tensor.name))
                    return
        raise AssertionError(f"no {before} in the graph")

    def other_operator(self, before: str, after: str) -> None:
        nodes = [node for node in self.model.graph.node if node.op_type == before]
        assert nodes
        for node in nodes:
            node.op_type = after


def _layouts(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Arrays as they are; and as exporters store them: matrices transposed, the channels of [1,C,H,W] last."""
    yield arrays
    axes = {2: (1, 0), 4: (0, 2, 3, 1)}.get(arrays[0].ndim)
    if axes is not None:
        yield tuple(np.ascontiguousarray(array.transpose(axes)) for array in arrays)


def _same(one: Array, other: Array) -> bool:
    """Constants that are computed, like positions, differ in their last bits between processes and processors."""
    return np.allclose(one, other, rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class Damage:
    graph: str
    do: Callable[[Surgery], None]


def _scaled(weight: str, factor: float = 1.01) -> Callable[[Surgery], None]:
    return lambda surgery: surgery.change(weight, lambda array: array * np.float32(factor))


def _rows_swapped(weight: str, first: int, second: int) -> Callable[[Surgery], None]:
    def swap(array: Array) -> Array:
        swapped = array.copy()
        swapped[[first, second]] = array[[second, first]]
        return swapped

    return lambda surgery: surgery.change(weight, swap)


def _masks_swapped(surgery: Surgery) -> None:
    for part in ("proj_in", "layers.0", "proj_out"):
        for kind in ("weight", "bias"):
            first, second = (f"mask_decoder.output_hypernetworks_mlps.{index}.{part}.{kind}" for index in (1, 2))
            surgery.swap(first, second)


def _not_normalised(surgery: Surgery) -> None:
    surgery.through(surgery.through("image", "Mul", _STD), "Add", _MEAN)


def _channels_in_reverse(surgery: Surgery) -> None:
    surgery.through("image", "Gather", np.array([2, 1, 0]), axis=1)


def _half_a_pixel_off(surgery: Surgery) -> None:
    surgery.through("point_coords", "Add", np.array([-0.5], np.float32))


def _zeroed(name: str) -> Callable[[Surgery], None]:
    def zero(surgery: Surgery) -> None:
        surgery.through(name, "Mul", np.zeros(1, np.float32))

    return zero


_DECODER = "mask_decoder"
_FIRST = f"{_DECODER}.transformer.layers.0"
#: Names of SAM 2's inputs and weights.
DAMAGES: dict[str, Damage] = {
    "pixels are not normalised": Damage("encoder", _not_normalised),
    "channels in reverse": Damage("encoder", _channels_in_reverse),
    "an encoder's weight x 1.01": Damage("encoder", _scaled("vision_encoder.backbone.blocks.2.mlp.proj_in.weight")),
    "a bias of the encoder dropped": Damage(
        "encoder", lambda surgery: surgery.change("vision_encoder.neck.convs.2.bias", np.zeros_like)
    ),
    "an attention's weight x 1.01": Damage("decoder", _scaled(f"{_FIRST}.self_attn.q_proj.weight")),
    "the upscaling x 1.01": Damage("decoder", _scaled(f"{_DECODER}.upscale_conv2.weight")),
    "one mask x 1.01": Damage("decoder", _scaled(f"{_DECODER}.output_hypernetworks_mlps.3.proj_out.weight")),
    "the single mask x 1.01": Damage("decoder", _scaled(f"{_DECODER}.output_hypernetworks_mlps.0.proj_out.weight")),
    "scores x 1.01": Damage("decoder", _scaled(f"{_DECODER}.iou_prediction_head.proj_out.weight")),
    "two masks swapped": Damage("decoder", _masks_swapped),
    "no finest feature": Damage("decoder", _zeroed("high_res_feats_0")),
    "no finer feature": Damage("decoder", _zeroed("high_res_feats_1")),
    "object and background swapped": Damage("decoder", _rows_swapped("prompt_encoder.point_embed.weight", 0, 1)),
    "corners of boxes swapped": Damage("decoder", _rows_swapped("prompt_encoder.point_embed.weight", 2, 3)),
    "a projection transposed": Damage(
        "decoder", lambda surgery: surgery.change(f"{_FIRST}.self_attn.v_proj.weight", np.transpose)
    ),
    "a bias of the decoder dropped": Damage(
        "decoder", lambda surgery: surgery.change(f"{_DECODER}.upscale_conv1.bias", np.zeros_like)
    ),
    "points half a pixel off": Damage("decoder", _half_a_pixel_off),
    "positions a cell off": Damage(
        "decoder", lambda surgery: surgery.replace(surgery.positions, np.roll(surgery.positions, 1, axis=3))
    ),
    "masks as prompts ignored": Damage("decoder", _zeroed("has_mask_input")),
    "several masks never given": Damage("decoder", _zeroed("multimask_output")),
    "the stable mask always chosen": Damage("decoder", lambda surgery: surgery.threshold(0.98, -1.0)),
    "the stable mask never chosen": Damage("decoder", lambda surgery: surgery.threshold(0.98, 2.0)),
    "the worst mask chosen": Damage("decoder", lambda surgery: surgery.other_operator("ArgMax", "ArgMin")),
}


def damaged(name: str, encoder: Path, decoder: Path, network: Any, folder: Path) -> tuple[Path, Path]:
    """(encoder, decoder) of which one is a damaged copy in ``folder``."""
    damage = DAMAGES[name]
    graph = encoder if damage.graph == "encoder" else decoder
    surgery = Surgery(graph, network)
    damage.do(surgery)
    altered = surgery.save(folder / f"damaged-{graph.name}")
    return (altered, decoder) if damage.graph == "encoder" else (encoder, altered)
