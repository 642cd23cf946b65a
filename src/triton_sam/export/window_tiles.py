"""Rewrites blocks with windowed attention into a loop over tiles of some windows, which saves memory traffic.

The first stages of a Hiera trunk hold 65536 tokens: every node writes 25 to 150 MB, and the next one reads them back.
No node in them depends on another window, so all nodes can run for some windows, then for the next. Each block's own
splitting into windows and joining is not needed between the blocks of a loop.

Inside the loop the first axis counts windows: images [1,H,W,C] are [windows,h,w,C] there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triton_sam.export.onnx_graph import Graph

#: Tokens of the first block per iteration. With 2048, which fit into two cores' caches, the overhead of many small
#: nodes exceeds the gain.
TOKENS_AT_A_TIME = 8192
_WINDOWS_FIRST = [0, 1, 3, 2, 4, 5]
#: Operators that treat each token, or each head of each window, by itself.
_ELEMENTWISE = {"Add", "Mul", "Div", "Erf", "Gelu", "Softmax"}
_PRODUCTS = {"MatMul", "FusedMatMul", "DynamicQuantizeMatMul"}
#: Not worth including at the end of the loop: their results are as large as their inputs.
_LEFT_OUTSIDE = {"Transpose", "LayerNormalization", "Reshape"}


@dataclass
class _Region:
    """The part of the graph that goes into the loop.

    Attributes:
        windows: number of windows, down and across.
        images: tensors [1,H,W,C] -> (side of their windows, True); tensors [1,C,H,W] -> (side, False).
        stacks: tensors whose first axis counts windows.
        nodes: in order.
        aliases: tensor -> the one that replaces it, once splitting and joining windows is left out.
        blocks: how often the image is split into windows.
    """

    windows: tuple[int, int]
    images: dict[str, tuple[int, bool]]
    stacks: set[str] = field(default_factory=set)
    nodes: list[Any] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    blocks: int = 0

    @property
    def count(self) -> int:
        return self.windows[0] * self.windows[1]

    def __contains__(self, name: str) -> bool:
        return name in self.images or name in self.stacks

    def origin(self, name: str) -> str:
        while name in self.aliases:
            name = self.aliases[name]
        return name


def count_windowed_blocks(graph: Graph) -> int:
    """The number of blocks of a plain encoder that belong in the loop, however their windows are split.

    Windows shrink with the image when it is pooled, so blocks that can share a loop have the same number of windows. 0
    if no loop can be made: no windows, or too few for a second iteration.
    """
    shapes = [graph.shape(node.output[0]) for node in graph.nodes if node.op_type == "Softmax"]
    if not shapes or len(shapes[0]) < 3 or shapes[0][0] is None or shapes[0][-1] is None:
        return 0
    windows, keys = shapes[0][0], shapes[0][-1]
    blocks = sum(shape[:1] == [windows] for shape in shapes)
    return blocks if windows > 1 and blocks > 1 and _fits(windows, keys) else 0


def _fits(windows: int, tokens: int) -> bool:
    """Whether windows of ``tokens`` tokens fill the iterations of the loop evenly."""
    at_a_time = max(1, TOKENS_AT_A_TIME // tokens)
    return windows % at_a_time == 0 and windows > at_a_time


def tile_windows(graph: Graph) -> int:
    """Moves the blocks from the first split into windows on into a loop; returns the number of blocks in it."""
    graph.drop_unused()
    for node in graph.nodes:
        cut = _cut(graph, node)
        if cut is None:
            continue
        norm = graph.producer(node.input[0], "LayerNormalization")
        if norm is None:
            return 0
        windows, side = cut
        region = _grown(graph, norm.input[0], windows, side)
        at_a_time = max(1, TOKENS_AT_A_TIME // side**2)
        fits = region.blocks > 1 and _fits(region.count, side**2)
        return region.blocks if fits and _replace(graph, region, norm.input[0], at_a_time) else 0
    return 0


def _cut(graph: Graph, node: Any) -> tuple[tuple[int, int], int] | None:
    """((windows down, windows across), side) if a Reshape starts to split [1,H,W,C] into windows [windows,h,w,C]."""
    shapes = _three_shapes(graph, node)
    if shapes is None:
        return None
    (batch, height, width, channels), (one, down, inner, across, inside, same), last = shapes
    fits = (batch, one, inner, same) == (1, 1, inside, channels) and (down * inner, across * inside) == (height, width)
    return ((down, across), inner) if fits and last == [down * across, inner, inner, channels] else None


def _joined(graph: Graph, node: Any, windows: tuple[int, int]) -> int | None:
    """The windows' side if a Reshape starts to join [windows,h,w,C] to [1,H,W,C]."""
    shapes = _three_shapes(graph, node)
    if shapes is None:
        return None
    (count, height, width, channels), middle, last = shapes
    down, across = windows
    fits = count == down * across and height == width and middle == [1, down, across, height, width, channels]
    return height if fits and last == [1, down * height, across * width, channels] else None


def _three_shapes(graph: Graph, node: Any) -> tuple[list[int], list[int], list[int]] | None:
    """Shapes before, in and after the Reshape, Transpose, Reshape that splits windows; None for another pattern."""
    if node.op_type != "Reshape":
        return None
    transpose = graph.sole_consumer(node.output[0], "Transpose")
    last = None if transpose is None else graph.sole_consumer(transpose.output[0], "Reshape")
    if last is None or list(graph.attribute(transpose, "perm", [])) != _WINDOWS_FIRST:
        return None
    shapes = [graph.shape(name) for name in (node.input[0], node.output[0], last.output[0])]
    if [len(shape) for shape in shapes] != [4, 6, 4] or any(size is None for shape in shapes for size in shape):
        return None
    before, middle, after = ([int(size or 0) for size in shape] for shape in shapes)
    return before, middle, after


def _grown(graph: Graph, first: str, windows: tuple[int, int], side: int) -> _Region:
    """All nodes after the image ``first`` that can be computed window by window."""
    region = _Region(windows, {first: (side, True)})
    seen: set[int] = set()
    for node in graph.nodes:
        if id(node) in seen or not any(name in region for name in node.input):
            continue
        steps = _window_steps(graph, node, region)
        seen.update(id(step) for step in steps)
        if not steps and _takes(graph, node, region):
            region.nodes.append(node)
    _trim(graph, region)
    return region


def _window_steps(graph: Graph, node: Any, region: _Region) -> list[Any]:
    """The three nodes that split or join windows. They are left out of the loop: their result becomes an alias."""
    name = node.input[0]
    side = _joined(graph, node, region.windows) if name in region.stacks else None
    if side is None and (name not in region.images or _cut(graph, node) != (region.windows, region.images[name][0])):
        return []
    transpose = graph.consumers(node.output[0])[0]
    last = graph.consumers(transpose.output[0])[0]
    result = last.output[0]
    if side is None:
        region.stacks.add(result)
        region.blocks += 1
    else:
        region.images[result] = (side, True)
    region.aliases[result] = name
    return [node, transpose, last]


def _takes(graph: Graph, node: Any, region: _Region) -> bool:
    """Whether a node treats each window by itself; if so, its outputs are recorded in the region."""
    moving = [name for name in node.input if name in region]
    if any(name not in region and graph.constant(name) is None for name in node.input if name):
        return False
    if all(name in region.stacks for name in moving):
        kept = _keeps_windows_apart(graph, node, region)
        region.stacks.update(node.output if kept else ())
        return kept
    layouts = {region.images.get(name) for name in moving}
    after = _layout_after(graph, node, *layouts) if len(layouts) == 1 else None
    if after is not None:
        region.images[node.output[0]] = after
    return after is not None


def _layout_after(graph: Graph, node: Any, before: tuple[int, bool] | None) -> tuple[int, bool] | None:
    """The windows' side and layout after a node that works on images; None if it may depend on other windows."""
    if before is None or len(node.output) != 1:
        return None
    (side, channels_last), kind = before, node.op_type
    if kind == "Transpose":
        order = list(graph.attribute(node, "perm", []))
        return (side, not channels_last) if order == ([0, 3, 1, 2] if channels_last else [0, 2, 3, 1]) else None
    if kind == "MaxPool":
        halves = list(graph.attribute(node, "kernel_shape", [])) == list(graph.attribute(node, "strides", [])) == [2, 2]
        return (side // 2, False) if halves and side % 2 == 0 and _is_plain_pool(graph, node, channels_last) else None
    if not channels_last:
        return None
    is_norm = kind == "LayerNormalization" and graph.attribute(node, "axis", -1) in (-1, 3)
    return before if is_norm or _is_per_token(graph, node) else None


def _is_plain_pool(graph: Graph, node: Any, channels_last: bool) -> bool:
    unusual = [*graph.attribute(node, "pads", []), graph.attribute(node, "ceil_mode", 0)]
    unusual += [step - 1 for step in graph.attribute(node, "dilations", [])]
    return not channels_last and not any(unusual) and graph.attribute(node, "auto_pad", b"NOTSET") == b"NOTSET"


def _is_per_token(graph: Graph, node: Any) -> bool:
    constants = [graph.constant(name) for name in node.input if name]
    if node.op_type in _PRODUCTS:
        return constants[0] is None and all(array is not None for array in constants[1:])
    return node.op_type in _ELEMENTWISE and all(array is None or array.ndim <= 1 for array in constants)


def _keeps_windows_apart(graph: Graph, node: Any, region: _Region) -> bool:
    """Whether a node on tensors [windows,...] treats each window by itself."""
    kind = node.op_type
    if kind == "Transpose":
        return bool(graph.attribute(node, "perm", [1])[0] == 0)
    if kind == "Reshape":
        target = graph.constant(node.input[1])
        return target is not None and target.size > 1 and int(target[0]) in (0, region.count)
    if kind == "Softmax":
        return graph.attribute(node, "axis", -1) in (-1, 3)
    if kind in ("MatMul", "FusedMatMul", "MultiHeadAttention") and all(name in region.stacks for name in node.input):
        return True
    # A pool's input has four axes, and the first two stay as they are.
    return (kind == "MaxPool" and len(node.output) == 1) or _is_per_token(graph, node)


def _trim(graph: Graph, region: _Region) -> None:
    """Removes nodes at the end of the region that would only add to the number or size of the loop's results.

    Among them are the projections of a block that attends to the whole image: their tensors are new, without a shape.
    """
    while True:
        needed = {name for node in region.nodes for name in node.input} | set(region.aliases.values())
        last = [
            node
            for node in region.nodes
            if not needed.intersection(node.output)
            and (node.op_type in _LEFT_OUTSIDE or not graph.shape(node.output[0]))
        ]
        if not last:
            return
        gone = {id(node) for node in last}
        region.nodes = [node for node in region.nodes if id(node) not in gone]
        for name in [name for node in last for name in node.output]:
            region.images.pop(name, None)
            region.stacks.discard(name)


def _replace(graph: Graph, region: _Region, first: str, at_a_time: int) -> bool:
    """Replaces the region's nodes by the loop; False if its results would not be images."""
    inner = {id(node) for node in region.nodes}
    steps = {name for alias in region.aliases for name in _names_between(graph, alias, region.aliases[alias])}
    results = [
        name
        for name in (*region.images, *region.stacks)
        if name != first and (name in graph.outputs or _has_users(graph, name, inner, steps))
    ]
    shapes = {name: graph.shape(name) for name in (first, *results)}
    known = all(len(shape) == 4 and None not in shape for shape in shapes.values())
    if not results or not known or not all(region.images.get(name, (0, False))[1] for name in shapes):
        return False
    tiles, (down, across) = region.count // at_a_time, region.windows
    sides = {name: region.images[name][0] for name in shapes}
    channels = {name: int(shape[3] or 0) for name, shape in shapes.items()}
    flat = {name: [at_a_time, sides[name], sides[name], channels[name]] for name in shapes}
    body = _body(graph, region, at_a_time, {first: flat[first]}, {name: flat[name] for name in results})

    def shape_of(name: str, sizes: list[int]) -> str:
        return graph.add_constant(name, np.array(sizes, np.int64))

    side, depth = sides[first], channels[first]
    cut = shape_of("tiles/cut", [1, down, side, across, side, depth])
    new = [
        graph.node("Reshape", [first, cut], ["tiles/parts"]),
        graph.node("Transpose", ["tiles/parts"], ["tiles/windows"], perm=_WINDOWS_FIRST),
        graph.node("Reshape", ["tiles/windows", shape_of("tiles/stack", [tiles, *flat[first]])], ["tiles/tiles"]),
        graph.node("Scan", ["tiles/tiles"], [f"{name}/tiles" for name in results], body=body, num_scan_inputs=1),
    ]
    for name in results:
        side, depth = sides[name], channels[name]
        joined = shape_of(f"{name}/joined", [1, down, across, side, side, depth])
        whole = shape_of(f"{name}/whole", [1, down * side, across * side, depth])
        new += [
            graph.node("Reshape", [f"{name}/tiles", joined], [f"{name}/parts"]),
            graph.node("Transpose", [f"{name}/parts"], [f"{name}/turned"], perm=_WINDOWS_FIRST),
            graph.node("Reshape", [f"{name}/turned", whole], [name]),
        ]
    gone = [node for node in graph.nodes if id(node) in inner or steps.intersection(node.output)]
    graph.replace(gone, new)
    return True


def _names_between(graph: Graph, result: str, origin: str) -> list[str]:
    """Outputs of the three nodes that split or join windows."""
    names = []
    while result != origin:
        names.append(result)
        result = graph.producer(result).input[0]
    return names


def _has_users(graph: Graph, name: str, inner: set[int], steps: set[str]) -> bool:
    """Whether a node outside the loop takes a tensor."""
    return any(id(node) not in inner and not steps.intersection(node.output) for node in graph.consumers(name))


def _body(
    graph: Graph, region: _Region, at_a_time: int, taken: dict[str, list[int]], given: dict[str, list[int]]
) -> Any:
    """The loop's subgraph. Its names have a prefix, so that they do not clash with tensors around it."""
    nodes = []
    for node in region.nodes:
        copy = type(node)()
        copy.CopyFrom(node)
        names = [region.origin(name) for name in node.input]
        if node.op_type == "Reshape" and names[0] in region.stacks | set(map(region.origin, region.stacks)):
            target = graph.constant(node.input[1])
            assert target is not None  # checked by _keeps_windows_apart
            if int(target[0]) == region.count:
                sizes = np.array([at_a_time, *target[1:]], np.int64)
                names[1] = graph.add_constant(f"{node.output[0]}/tile_shape", sizes)
        del copy.input[:]
        copy.input.extend(names)
        nodes.append(copy)
    return graph.subgraph("tile", nodes, taken, {region.origin(name): shape for name, shape in given.items()})
