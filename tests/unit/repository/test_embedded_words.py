"""The model of words that is part of this package: set up in an empty home, without torch and without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_WITHOUT = ("torch", "transformers", "safetensors", "huggingface_hub")
_CODE = (
    f"""
import sys
sys.modules.update(dict.fromkeys({_WITHOUT}))
"""
    + """
import io, json
from pathlib import Path
import numpy as np
from PIL import Image, ImageDraw
from triton_sam.core.concepts.request import ConceptPrompt
from triton_sam.core.images import EncodedImage
from triton_sam.engines.concepts import ConceptRow
from triton_sam.engines.loading import load_engine
from triton_sam.models.catalog import get_spec
from triton_sam.models.weights import WeightStore
from triton_sam.repository.model_folders import served_spec
from triton_sam.repository.setup import SetupRequest, set_up
from triton_sam.settings import Settings

home, said, spec = Path(sys.argv[1]), [], get_spec("sam3:shapes")
request = SetupRequest(spec, WeightStore(home), home / "models", cpu_encoder=True, fast_decoder=True, say=said.append)
names = set_up(request)
folder = home / "models" / names[0] / "1"
engine = load_engine(served_spec(spec, folder), folder, Settings(home=home))
picture, file = Image.new("RGB", (640, 480), "white"), io.BytesIO()
ImageDraw.Draw(picture).ellipse((100, 100, 220, 220), fill="red")
picture.save(file, "PNG")
embedding = engine.encode([engine.prepare(EncodedImage(file.getvalue(), max_bytes=10**7, max_pixels=10**7))])[0]
prompt = ConceptPrompt("red circle", np.zeros((0, 4), np.float32), np.zeros(0, np.int32))
(found,) = engine.begin_concepts([ConceptRow(embedding, prompt, 0.0, 5)])()
scores = found.decoded.scores.ravel().tolist()
print(json.dumps({"names": names, "said": said, "boxes": found.boxes.tolist(), "scores": scores}))
"""
)


def test_it_is_set_up_and_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CODE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TRITON_SAM_HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["names"] == ["sam3_shapes", "sam3_shapes_encoder", "sam3_shapes_decoder"]
    assert [line.partition(":")[0] for line in answer["said"]] == ["putting its graphs together", "decoder-cpu1.onnx"]
    assert len(answer["boxes"]) == len(answer["scores"]) == 5
    assert answer["scores"] == sorted(answer["scores"], reverse=True)
    assert answer["scores"][0] > 0.9
    assert answer["scores"][1] < 0.5
    assert answer["boxes"][0] == pytest.approx([100, 100, 220, 220], abs=6)
