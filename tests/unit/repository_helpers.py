"""Graph files that are none, and what stands in a repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from triton_sam.models.specs import ModelSpec
from triton_sam.repository import segmenters


def write_models(spec: ModelSpec, encoder: Path, decoder: Path, folder: Path, **more: Any) -> list[str]:
    """As ``set_up`` does it: ready-made graphs (mere bytes here) have a pair under the contract beside them."""
    raw = None if spec.graphs.exported else (encoder, decoder)
    return segmenters.write_models(spec, encoder, decoder, folder, raw=raw, **more)


def parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def content_below(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


def config_names(repository: Path) -> dict[str, str]:
    return {path.parent.name: parsed(path.read_text()).name for path in repository.glob("*/config.pbtxt")}


def nothing_left_beside(repository: Path) -> bool:
    return [path.name for path in repository.parent.iterdir()] == [repository.name]


class Weights:
    """Graph files to write models from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, mark: str = "", *, data: bool = False) -> tuple[Path, Path]:
        """An encoder and a decoder whose bytes carry the mark."""
        folder = self.folder / f"graphs-{mark}"
        folder.mkdir(parents=True, exist_ok=True)
        pair = folder / "encoder.onnx", folder / "decoder.onnx"
        for path in pair:
            path.write_bytes(f"the {path.stem} {mark}".encode())
        if data:
            (folder / "encoder.onnx_data").write_bytes(f"numbers {mark}".encode())
        return pair
