"""Every variant at full size with random weights: does it export, how exactly, how long, in how much memory.

``python -m triton_sam.bench.exports [ID...]`` writes docs/exports.json, from which docs/models.md is made. Each variant
runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from triton_sam.models.catalog import CATALOG, get_spec

RESULT = Path("docs") / "exports.json"
_ROUNDS = 6
_REST_SECONDS = 0.2


def main() -> int:
    if sys.argv[1:2] in (["--export"], ["--serve"]):
        row = _export(sys.argv[2], Path(sys.argv[3])) if sys.argv[1] == "--export" else _serve(*sys.argv[2:4])
        sys.stdout.write(json.dumps(row) + "\n")
        return 0
    ids = sys.argv[1:] or list(CATALOG)
    rows = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for model_id in ids:
        with tempfile.TemporaryDirectory(prefix="triton-sam-export-") as folder:
            rows[model_id] = _in_a_process("--export", model_id, folder) | _in_a_process("--serve", model_id, folder)
        RESULT.write_text(json.dumps({key: rows[key] for key in CATALOG if key in rows}, indent=2) + "\n")
        sys.stdout.write(f"{model_id}: {json.dumps(rows[model_id])}\n")
        sys.stdout.flush()
    return 0


def _in_a_process(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "triton_sam.bench.exports", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _peak_gib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def _export(model_id: str, folder: Path) -> dict[str, Any]:
    """An export as a user would run it, from a checkpoint file of random weights."""
    from triton_sam.export.random_weights import randomise, save_as_folder
    from triton_sam.export.run import export_checkpoint
    from triton_sam.networks.segmenters import build

    spec = get_spec(model_id)
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():  # in a process of its own again: the weights' making is no part of the export
        if "--make" not in sys.argv:
            command = [sys.executable, "-m", "triton_sam.bench.exports", "--export", model_id, str(folder), "--make"]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        else:
            network = build(spec.architecture, spec.side)
            randomise(network)
            save_as_folder(network, checkpoint)
            return {}
    started = time.monotonic()
    exported = export_checkpoint(spec, checkpoint, folder / "export")
    return {
        "seconds": round(time.monotonic() - started, 1),
        "export_gib": _peak_gib(),
        "opset": exported.report["opset"]["encoder"],
        "files_mb": {name: round(size / 1e6, 1) for name, size in exported.report["files"].items()},
        "worst_share": {row["output"]: row["share"] for row in exported.report["summary"]},
        "parameters_m": exported.report["parameters_m"],
        "onnx_over_torch": _encoder_ratio(spec, folder),
    }


def _encoder_ratio(spec: Any, folder: Path) -> dict[str, float]:
    """Seconds of the encoder in ONNX Runtime and in torch as transformers has it, on the same threads, in turn."""
    import onnxruntime
    import torch

    from triton_sam.export.checkpoint import load_weights
    from triton_sam.networks.segmenters import build, normalisation

    network = build(spec.architecture, spec.side)
    load_weights(network, folder / "checkpoint", spec)
    mean, std = normalisation(spec.architecture)
    # As both come: the server's own session lets its threads sleep, which costs an encode to spare the clicks.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(folder / "export" / "encoder.onnx"), options)
    name = session.get_inputs()[0].name
    pixels = torch.rand(1, 3, spec.side, spec.side)
    ours, theirs = [], []
    with torch.inference_mode():
        for _ in range(_ROUNDS + 1):
            ours.append(_seconds(lambda: session.run(None, {name: pixels.numpy()})))
            theirs.append(_seconds(lambda: network.get_image_embeddings((pixels - mean) / std)))
    pairs = list(zip(ours, theirs, strict=True))[1:]  # the first one warms up
    return {
        "onnx_s": round(median(pair[0] for pair in pairs), 2),
        "torch_s": round(median(pair[1] for pair in pairs), 2),
        "ratio": round(median(onnx / eager for onnx, eager in pairs), 2),
    }


def _seconds(action: Callable[[], object]) -> float:
    time.sleep(_REST_SECONDS)  # threads of the one before may still be spinning
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _serve(model_id: str, folder: str) -> dict[str, Any]:
    """Peak memory of a process that loads both graphs, encodes one picture and answers one click."""
    import dataclasses
    import io

    import numpy as np
    from PIL import Image

    from triton_sam.core.images import EncodedImage
    from triton_sam.core.prompts import ObjectPrompt
    from triton_sam.engines.base import Row
    from triton_sam.engines.loading import load_engine
    from triton_sam.models.specs import graphs_from_json
    from triton_sam.settings import get_settings

    export, settings = Path(folder) / "export", get_settings()
    graphs = graphs_from_json((export / "graphs.json").read_bytes())
    engine = load_engine(dataclasses.replace(get_spec(model_id), graphs=graphs), export, settings)
    picture = io.BytesIO()
    Image.new("RGB", (1024, 768), "grey").save(picture, "PNG")
    image = EncodedImage(picture.getvalue(), max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
    embedding = engine.encode([engine.prepare(image)])[0]
    point = ObjectPrompt(np.array([[100, 100]], np.float32), np.ones(1, np.int32))
    engine.decode([Row(embedding, point, multimask=True)])
    return {"serve_gib": _peak_gib()}


if __name__ == "__main__":
    sys.exit(main())
