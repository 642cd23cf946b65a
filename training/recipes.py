"""Takes the weights out of exported graphs, for models that ``triton-sam setup`` puts together without torch.

A network of the model's architecture is exported with random weights, twice. A tensor that is the same both times
belongs to the graph. Every other one must equal a weight, or what :mod:`triton_sam.export.assembly.prepared` computes
from weights; it is taken out, and where it came from is noted. Trained weights only change numbers, so recipes do not
depend on them.
"""

from __future__ import annotations

import importlib.metadata
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from triton_sam.export.assembly.recipes import GRAPH_SUFFIX, TABLE_FILE, TRANSPOSED, tensors_of
from triton_sam.export.run import EXPORTER

#: Of the random weights of the two exports.
SEEDS = (0, 1)
_PACKAGES = ("torch", "transformers", "onnx")
#: Constants of the graphs themselves are smaller, or one number repeated, or tables of positions.
_LARGEST_CONSTANT = 256
#: Share of the largest number by which numpy's positions may differ from torch's.
_MOST_ROUNDING = 2e-5
_Arrays = dict[str, np.ndarray[Any, Any]]


def write_recipes(
    exports: Sequence[Path],
    graphs: Sequence[str],
    weights: _Arrays,
    folder: Path,
    *,
    side: int,
    published: Mapping[str, Any] | None = None,
    keep_tables: bool = False,
) -> None:
    """Writes the recipes of a model's graphs into ``folder``.

    Args:
        exports: two folders with the same graphs, of other weights.
        weights: those of the first export, with all that is computed from them.
        side: of the model's input, pixels.
        published: see :data:`~triton_sam.export.assembly.published.Table`.
        keep_tables: leaves large constants that no weight determines in the graphs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {}
    for name in graphs:
        models = [onnx.load(str(written / name)) for written in exports]
        tables[name] = _take_out(models[0], models[1], weights, keep_tables)
        plain = models[0].SerializeToString(deterministic=True)
        (folder / f"{name}{GRAPH_SUFFIX}").write_bytes(lzma.compress(plain, preset=9 | lzma.PRESET_EXTREME))
    content = {
        "side": side,
        "exporter": EXPORTER,
        "made_with": {package: importlib.metadata.version(package) for package in _PACKAGES},
        "published": dict(published or {}),
        "graphs": tables,
    }
    (folder / TABLE_FILE).write_text(table_text(content))


def table_text(content: Mapping[str, Any], indent: str = "") -> str:
    """JSON with one line for each tensor."""
    lines = [
        f"{indent} {json.dumps(name)}: "
        + (table_text(value, f"{indent} ").strip() if isinstance(value, dict) else json.dumps(value))
        for name, value in content.items()
    ]
    return f"{indent}{{\n" + ",\n".join(lines) + f"\n{indent}}}\n"


def _take_out(model: Any, other: Any, weights: _Arrays, keep_tables: bool) -> dict[str, str]:
    """Removes the weights from a graph; tensor -> weight.

    Args:
        other: the same graph with other weights.
    """
    twins = dict(tensors_of(other))
    by_size: dict[int, list[str]] = {}
    for name, array in weights.items():
        by_size.setdefault(array.size, []).append(name)
    table = {}
    for name, tensor in tensors_of(model):
        array = numpy_helper.to_array(tensor)
        is_constant = np.array_equal(array, numpy_helper.to_array(twins[name]))
        if is_constant and (array.size <= _LARGEST_CONSTANT or (array == array.flat[0]).all()):
            continue
        sources = by_size.get(array.size, [])
        found = next((source for source in _ways(sources, weights) if _is_same(weights, source, array)), None)
        if found is None and is_constant and keep_tables:
            continue
        if found is None:
            raise SystemExit(f"nothing is known of {name} {array.shape}: prepared.py has to compute it")
        table[name] = found
        tensor.raw_data = b""
    return table


def _ways(names: list[str], weights: _Arrays) -> Iterator[str]:
    yield from names
    yield from (f"{TRANSPOSED}{name}" for name in names if weights[name].ndim == 2)


def _is_same(weights: _Arrays, source: str, array: np.ndarray[Any, Any]) -> bool:
    name = source.removeprefix(TRANSPOSED)
    weight = (weights[name].T if source != name else weights[name]).reshape(array.shape)
    return bool(np.abs(weight - array).max() <= _MOST_ROUNDING * np.abs(array).max())
