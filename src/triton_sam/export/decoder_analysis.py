"""Analyses a decoder by running it: ranks and sizes of its tensors, and those that no prompt changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.export.decoder_comparison import Trial, open_decoder, run_decoder
from triton_sam.export.onnx_graph import Graph, onnx_package
from triton_sam.models.specs import Graphs

#: They return the same numbers in another shape; if the shape is the same too, they are no-ops.
_RESHAPING = ("Reshape", "Flatten", "Identity")
#: They differ in everything that may differ, so that a tensor that is the same in all of them is constant. One has no
#: points, because decoders also branch on that.
_TRIALS = (Trial(1, 1), Trial(2, 3, own_images=True), Trial(3, 5, box=True), Trial(2, 0, mask=True))


@dataclass(frozen=True, slots=True)
class DecoderFacts:
    """What is known about the tensors of one decoder.

    Attributes:
        shapes: sizes of the axes, None for those that depend on the prompts.
        constants: value for one prompt of the tensors that depend only on the inputs' sizes. For several prompts they
            are the same, or the same repeated for each.
        fixed: names of the constants that are not repeated.
        no_ops: outputs of nodes that returned their input in every run; an exporter's releases differ in these.
    """

    shapes: Mapping[str, tuple[int | None, ...]]
    constants: Mapping[str, npt.NDArray[Any]]
    fixed: frozenset[str]
    no_ops: frozenset[str] = frozenset()

    def shape(self, name: str) -> tuple[int | None, ...]:
        return self.shapes.get(name, ())


def analyse_decoder(model: Any, graphs: Graphs) -> DecoderFacts:
    """Runs a model a few times with all its tensors as outputs."""
    graph = Graph(model)
    of_sizes = _depend_on_sizes(graph, model.graph.node)
    opened, names = _with_all_outputs(model, of_sizes)
    session = open_decoder(opened.SerializeToString())
    runs = [
        dict(zip(names, run_decoder(session, list(names.values()), trial.feeds(graphs)), strict=True))
        for trial in _TRIALS
    ]
    shapes, constants, fixed = {}, {}, set()
    sizes_of = {name: [tuple(run[name].tolist()) for run in runs] for name in names if name not in of_sizes}
    no_ops = {
        node.output[0]
        for node in model.graph.node
        if node.op_type in _RESHAPING and sizes_of.get(node.output[0], [()]) == sizes_of.get(node.input[0])
    }
    for name in names:
        values = [run[name] for run in runs]
        if name not in of_sizes:
            ranks = {len(value) for value in values}
            if len(ranks) == 1:
                shapes[name] = tuple(
                    int(sizes[0]) if len(set(sizes)) == 1 else None for sizes in zip(*values, strict=True)
                )
            continue
        first = values[0]
        if all(np.array_equal(first, value) for value in values):
            fixed.add(name)
            constants[name] = first
        elif all(_is_repeated(first, value) for value in values):
            constants[name] = first
    return DecoderFacts(shapes, constants, frozenset(fixed), frozenset(no_ops))


def _is_repeated(one: npt.NDArray[Any], many: npt.NDArray[Any]) -> bool:
    same_inside = one.ndim == many.ndim and one.ndim > 0 and one.shape[1:] == many.shape[1:]
    return same_inside and len(one) == 1 and bool((many == one).all())


def _depend_on_sizes(graph: Graph, nodes: Iterable[Any]) -> set[str]:
    """The tensors computed from constants and sizes alone; ``nodes`` are in topological order, as in every file."""
    found: set[str] = set()
    for node in nodes:
        inputs = [name for name in node.input if name]
        known = all(name in found or graph.constant(name) is not None for name in inputs)
        if node.op_type == "Shape" or (inputs and known and not _has_subgraph(node)):
            found.update(node.output)
    return found


def _has_subgraph(node: Any) -> bool:
    return any(entry.HasField("g") for entry in node.attribute)


def _with_all_outputs(model: Any, of_sizes: set[str]) -> tuple[Any, dict[str, str]]:
    """(model that outputs every tensor of ``of_sizes`` and the shape of every other, tensor -> name of its output)."""
    onnx = onnx_package()
    opened = type(model)()
    opened.CopyFrom(model)
    names: dict[str, str] = {}
    inputs = [entry.name for entry in model.graph.input]
    for name in [*inputs, *(name for node in model.graph.node for name in node.output if name)]:
        names[name] = name if name in of_sizes else f"{name}/sizes"
        if name not in of_sizes:
            opened.graph.node.append(onnx.helper.make_node("Shape", [name], [names[name]]))
    given = {entry.name for entry in opened.graph.output}
    opened.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names.values() if name not in given)
    return opened, names


def fold_constants(graph: Graph, facts: DecoderFacts) -> int:
    """Replaces tensors that are always the same by constants; returns the number of nodes removed."""
    ready = [node for node in graph.nodes if all(name in facts.fixed for name in node.output)]
    for node in ready:
        for name in node.output:
            if name not in graph.outputs:
                graph.add_constant(name, facts.constants[name])
    gone = [node for node in ready if not any(name in graph.outputs for name in node.output)]
    graph.replace(gone, [])
    return len(gone)


def drop_no_ops(graph: Graph, facts: DecoderFacts) -> int:
    """Removes nodes that do nothing, so that patterns need not know where an exporter puts them; returns how many."""
    gone = [node for node in graph.nodes if node.output[0] in facts.no_ops and node.output[0] not in graph.outputs]
    origins = {node.output[0]: node.input[0] for node in gone}
    graph.replace(gone, [])
    for node in graph.nodes:
        for index, name in enumerate(node.input):
            while name in origins:
                name = origins[name]
            node.input[index] = name
    graph.replace([], [])  # rebuilds the index of consumers
    return len(gone)
