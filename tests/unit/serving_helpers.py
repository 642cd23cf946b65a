"""Model repositories without weights, for the tests of what is served."""

from __future__ import annotations

from pathlib import Path

from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import EIGHT_BIT_ENCODER_FILE, ModelSpec
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.repository.segmenters import write_models, write_plain_model

SPEC = get_spec(DEFAULT_MODEL)
LARGE = get_spec("sam2.1:large")
SHAPES, LLAVA = get_vlm("vlm:shapes"), get_vlm("vlm:llava")


def write_repository(folder: Path, spec: ModelSpec = SPEC, *, fast: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    graph = folder.parent / "graph.onnx"
    graph.write_bytes(b"graph")
    raw = None if spec.graphs.exported else (graph, graph)
    write_models(spec, graph, graph, folder, raw=raw, extras={EIGHT_BIT_ENCODER_FILE: graph} if fast else {})
    return folder


def write_profile(folder: Path, name: str = "tool_encoder") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    graph = folder.parent / "tool.onnx"
    graph.write_bytes(b"tool")
    write_plain_model(name, graph, folder, inputs=[], outputs=[], profile="tool")
    return folder
