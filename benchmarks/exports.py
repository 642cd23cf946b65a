"""Does every model export at full size, how exactly, how long, and in how much memory? With random weights.

``python -m benchmarks exports [ID...]`` writes docs/data/exports.json, from which docs/reference/models.md is
generated. Each step runs in its own process, so that its peak memory is measured alone.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from triton_sam.bench.machine import commit, machine
from triton_sam.models.catalog import CATALOG, get_spec
from triton_sam.models.specs import TOKENIZER_FILE

RESULT = Path("docs/data/exports.json")
_ROUNDS = 6
_REST_SECONDS = 0.2
_WORD_ROUNDS = 3


def run_exports(model_ids: Sequence[str] | None) -> None:
    """Measures the models with these ids, or all, and updates their rows of docs/data/exports.json."""
    rows = json.loads(RESULT.read_text())["figures"] if RESULT.exists() else {}
    head = {"commit": commit(), "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "machine": machine()}
    head["command"] = "python -m benchmarks exports"
    chosen = [get_spec(model_id).id for model_id in model_ids or CATALOG]  # reports an unknown id before anything runs
    for model_id in chosen:
        with tempfile.TemporaryDirectory(prefix="triton-sam-export-") as folder:
            _in_a_process("make-checkpoint", model_id, folder)
            rows[model_id] = _in_a_process("export", model_id, folder) | _in_a_process("serve", model_id, folder)
            rows[model_id]["onnx_over_torch"] = _in_a_process("encoder-ratio", model_id, folder)
            if get_spec(model_id).architecture.concepts is not None:
                rows[model_id]["words"] = _in_a_process("words", model_id, folder)
        rows[model_id] |= {"commit": head["commit"], "date": head["date"]}
        figures = {key: rows[key] for key in CATALOG if key in rows}
        RESULT.write_text(json.dumps({**head, "figures": figures}, indent=2) + "\n")
        sys.stdout.write(f"{model_id}: {json.dumps(rows[model_id])}\n")
        sys.stdout.flush()


def _in_a_process(step: str, model_id: str, folder: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.exports", step, model_id, folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _peak_gib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def _make_checkpoint(model_id: str, folder: Path) -> dict[str, Any]:
    """Writes a checkpoint with random weights; it takes memory that must not count for the export."""
    from benchmarks.concepts_model import write_tokenizer
    from triton_sam.export.random_weights import randomise, save_as_folder
    from triton_sam.networks.segmenters import build

    spec = get_spec(model_id)
    network = build(spec.architecture, spec.side, concepts=spec.architecture.concepts is not None)
    randomise(network)
    save_as_folder(network, folder / "checkpoint")
    write_tokenizer(folder / "checkpoint")
    return {}


def _export(model_id: str, folder: Path) -> dict[str, Any]:
    """Exports the checkpoint as a user would."""
    from triton_sam.export.run import export_checkpoint

    spec = get_spec(model_id)
    started = time.monotonic()
    exported = export_checkpoint(spec, folder / "checkpoint", folder / "export")
    return {
        "seconds": round(time.monotonic() - started, 1),
        "export_gib": _peak_gib(),
        "opset": exported.report["opset"]["encoder"],
        "files_mb": {name: round(size / 1e6, 1) for name, size in exported.report["files"].items()},
        "worst_share": {row["output"]: row["share"] for row in exported.report["summary"]},
        "parameters_m": exported.report["parameters_m"],
    }


def _encoder_ratio(model_id: str, folder: Path) -> dict[str, Any]:
    """Seconds of the encoder in ONNX Runtime and in torch (transformers), with as many threads, in turns."""
    import onnxruntime
    import torch

    from triton_sam.export.checkpoint import load_weights
    from triton_sam.networks.segmenters import build, normalisation

    spec = get_spec(model_id)
    network = build(spec.architecture, spec.side)
    load_weights(network, folder / "checkpoint", spec)
    mean, std = normalisation(spec.architecture)
    # Default options on both sides: the server's session lets threads sleep, which slows encodes in favour of clicks.
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
    pairs = list(zip(ours, theirs, strict=True))[1:]  # the first pair warms up
    return {
        "onnx_s": round(median(pair[0] for pair in pairs), 2),
        "torch_s": round(median(pair[1] for pair in pairs), 2),
        "ratio": round(median(onnx / torch_s for onnx, torch_s in pairs), 2),
    }


def _seconds(action: Callable[[], object]) -> float:
    time.sleep(_REST_SECONDS)  # threads of the previous run may still be spinning
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _engine(model_id: str, export: Path) -> Any:
    """The engine of an export, with all that is there."""
    from triton_sam.engines.loading import load_engine
    from triton_sam.repository.model_folders import served_spec
    from triton_sam.settings import get_settings

    return load_engine(served_spec(get_spec(model_id), export), export, get_settings())


def _encode(engine: Any, shade: int) -> Any:
    """The embedding of a grey picture."""
    import io

    from PIL import Image

    from triton_sam.core.images import EncodedImage
    from triton_sam.settings import get_settings

    settings, picture = get_settings(), io.BytesIO()
    Image.new("RGB", (1024, 768), (shade, shade, shade)).save(picture, "PNG")
    image = EncodedImage(picture.getvalue(), max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
    return engine.encode([engine.prepare(image)])[0]


def _serve(model_id: str, folder: Path) -> dict[str, Any]:
    """Peak memory of a process that loads both graphs, encodes one image and decodes one click."""
    import numpy as np

    from triton_sam.core.prompts import ObjectPrompt
    from triton_sam.engines.base import Row

    engine = _engine(model_id, folder / "export")
    embedding = _encode(engine, 128)
    point = ObjectPrompt(np.array([[100, 100]], np.float32), np.ones(1, np.int32))
    engine.decode([Row(embedding, point, multimask=True)])
    return {"serve_gib": _peak_gib()}


def _words(model_id: str, folder: Path) -> dict[str, Any]:
    """Seconds of an image, of a text that is new and of one that is known; and the process's peak memory."""
    import numpy as np

    from triton_sam.core.concepts.request import ConceptPrompt
    from triton_sam.engines.concepts import ConceptRow

    export = folder / "export"
    shutil.copyfile(folder / "checkpoint" / TOKENIZER_FILE, export / TOKENIZER_FILE)
    started = time.perf_counter()
    engine = _engine(model_id, export)
    row: dict[str, Any] = {"load_s": round(time.perf_counter() - started, 2)}
    nothing = np.zeros((0, 4), np.float32), np.zeros(0, np.int32)

    def find(embedding: Any, text: str) -> None:
        prompt = ConceptPrompt(text, *nothing)
        (found,) = engine.begin_concepts([ConceptRow(embedding, prompt, 0.0, 30)])()
        assert len(found.boxes)

    embedding = _encode(engine, 0)
    find(embedding, "visual")  # opens the sessions
    for name, action in {
        "image_s": lambda number: _encode(engine, number),
        "new_text_s": lambda number: find(embedding, f"red {'thing ' * number}"),
        "known_text_s": lambda number: find(embedding, "visual"),
    }.items():
        row[name] = round(median(_seconds(partial(action, number)) for number in range(1, _WORD_ROUNDS + 1)), 2)
    return row | {"serve_gib": _peak_gib()}


_STEPS: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "make-checkpoint": _make_checkpoint,
    "export": _export,
    "serve": _serve,
    "words": _words,
    "encoder-ratio": _encoder_ratio,
}

if __name__ == "__main__":
    name, model, path = sys.argv[1:]
    sys.stdout.write(json.dumps(_STEPS[name](model, Path(path))) + "\n")
