"""Exports of real weights, made once for all tests that serve them, and the masks of their torch networks."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from triton_sam.errors import WeightsError
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import Precision, graphs_from_json, graphs_to_json
from triton_sam.models.weights import WeightStore
from triton_sam.settings import get_settings

#: Next to the repository, not in it.
TINY_WEIGHTS = Path("../shared/weights/sam2_hiera_tiny_image_fp16.safetensors")
Point = tuple[float, float]


@dataclass(frozen=True)
class Scene:
    """Prompts on a photograph, as shares of its sides.

    All are objects whose borders the networks are sure of. Others are no test of a precision: one point on the cup's
    handle may mean the handle or the cup, and SAM2-tiny in fp16 chooses differently from fp32 (IoU 0.83). MobileSAM was
    never trained with a mask only, so that most masks for such a prompt are noise around a logit of 0 (int8 down to IoU
    0.61). Both networks reproduce the mask of a whole saucer, cat or face.

    Attributes:
        point: on an object; elsewhere: next to it, not on it.
        box, inside: a box around an object, and a point on it.
        fed_back: a box whose mask is given back as ``mask_input``.
    """

    point: Point
    elsewhere: Point
    box: tuple[float, float, float, float]
    inside: Point
    fed_back: tuple[float, float, float, float]


SCENES = {
    # The spoon and the saucer; the cup and its rim; the saucer.
    "coffee": Scene((0.6, 0.72), (0.2, 0.62), (0.24, 0.04, 0.70, 0.56), (0.45, 0.1), (0.12, 0.15, 0.82, 0.98)),
    # The right eye and the nose; the left eye; the cat.
    "chelsea": Scene((0.72, 0.45), (0.575, 0.81), (0.3, 0.28, 0.46, 0.5), (0.37, 0.38), (0.0, 0.0, 0.82, 1.0)),
    # The face and the hair; the helmet; the face.
    "astronaut": Scene((0.43, 0.25), (0.42, 0.07), (0.55, 0.67, 1.0, 1.0), (0.75, 0.85), (0.34, 0.13, 0.55, 0.38)),
}
KINDS = ("point", "two points", "box", "box and point", "mask and point", "mask alone")


class Truth:
    """Reference masks of a model's torch network, computed once for each photograph and kind of prompt."""

    def __init__(self, model_id: str, checkpoint: Path, photographs: Path) -> None:
        # Imported here, because tests that need no torch are collected without it.
        from tests.integration.torch_reference import TorchReference

        self.network = TorchReference.of_checkpoint(model_id, checkpoint, keeps_aspect=model_id == "sam1:mobile")
        self._photographs = photographs
        self._prompts: dict[str, dict[str, dict[str, Any]]] = {}
        self._masks: dict[tuple[str, str], np.ndarray] = {}

    def file(self, name: str) -> Path:
        return self._photographs / f"{name}.png"

    def picture(self, name: str) -> Image.Image:
        with Image.open(self.file(name)) as opened:
            return opened.convert("RGB")

    def prompts(self, name: str) -> dict[str, dict[str, Any]]:
        """Kind -> prompt, in pixels of the photograph."""
        if name not in self._prompts:
            scene, picture = SCENES[name], self.picture(name)

            def pixels(*shares: float) -> list[float]:
                return [share * picture.size[index % 2] for index, share in enumerate(shares)]

            point = {"points": [pixels(*scene.point)], "labels": [1]}
            box = {"box": pixels(*scene.box)}
            self._prompts[name] = {
                "point": point,
                "two points": {"points": [pixels(*scene.point), pixels(*scene.elsewhere)], "labels": [1, 0]},
                "box": box,
                "box and point": box | {"points": [pixels(*scene.inside)], "labels": [1]},
                "mask and point": point | {"mask_input": self.network.logits(picture, **point)[0][0]},
                "mask alone": {"mask_input": self.network.logits(picture, box=pixels(*scene.fed_back))[0][0]},
            }
        return self._prompts[name]

    def masks(self, name: str, kind: str) -> np.ndarray:
        """[1,H,W] bool."""
        if (name, kind) not in self._masks:
            self._masks[name, kind] = self.network.masks(self.picture(name), **self.prompts(name)[kind])
        return self._masks[name, kind]


class Exports:
    """Exports and checks each model once; fp16 and int8 graphs are converted from it, as the exporter does."""

    def __init__(self, folder: Path, photographs: Path) -> None:
        self._folder = folder
        self._photographs = photographs
        self._truths: dict[str, Truth] = {}

    def checkpoint(self, model_id: str) -> Path:
        if model_id == "sam2:tiny":
            path = Path(__file__).parents[2] / TINY_WEIGHTS
            if not path.exists():
                pytest.skip(f"the weights of SAM2-tiny are not at {TINY_WEIGHTS}")
            return path
        try:
            return WeightStore(get_settings().home).pull_checkpoint(get_spec(model_id))
        except WeightsError as error:
            pytest.skip(f"the checkpoint of {model_id} is not available here: {error}")

    def truth(self, model_id: str) -> Truth:
        if model_id not in self._truths:
            self._truths[model_id] = Truth(model_id, self.checkpoint(model_id), self._photographs)
        return self._truths[model_id]

    def export(self, model_id: str, precision: Precision) -> Path:
        folder = self._folder / f"{get_spec(model_id).variant_name}-{precision.value}"
        if folder.exists():
            return folder
        from triton_sam.export.precision_conversion import convert_graph
        from triton_sam.export.run import export_checkpoint

        if precision is Precision.FP32:
            return export_checkpoint(get_spec(model_id), self.checkpoint(model_id), folder).folder
        shutil.copytree(self.export(model_id, Precision.FP32), folder)
        for graph in ("encoder", "decoder"):
            convert_graph(folder / f"{graph}.onnx", precision, is_decoder=graph == "decoder")
        description = folder / "graphs.json"
        graphs = dataclasses.replace(graphs_from_json(description.read_bytes()), precision=precision)
        description.write_text(graphs_to_json(graphs))
        return folder


@pytest.fixture(scope="session")
def exports(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Exports:
    return Exports(tmp_path_factory.mktemp("exports"), photographs)
