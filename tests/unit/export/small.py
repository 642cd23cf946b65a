"""Small random networks and their graphs: built like the real ones, with a hundredth of the work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch

from triton_sam.export.parity import ParityCheck
from triton_sam.export.parity_reference import Reference
from triton_sam.export.parity_report import Report
from triton_sam.export.parity_scenes import Scene, drawing
from triton_sam.export.random_weights import randomise, shrunk
from triton_sam.export.run import write_graphs
from triton_sam.models.architecture import Architecture, Backbone
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import ModelSpec, exported_graphs
from triton_sam.networks.segmenters import build

Arrays = dict[str, npt.NDArray[np.float32]]
SIDES = {Backbone.VIT: 256, Backbone.TINY_VIT: 256, Backbone.HIERA: 256, Backbone.PERCEPTION: 224}


def small_spec(model_id: str) -> ModelSpec:
    """A catalogue row with few narrow blocks and a small side, still with several windows and a global block."""
    spec = shrunk(get_spec(model_id))
    architecture = spec.architecture
    if architecture.backbone is Backbone.HIERA:
        architecture = dataclasses.replace(architecture, width=architecture.width // 2)
    if architecture.backbone is Backbone.PERCEPTION:  # a grid of 16: two windows a side, as the real one has three
        architecture = dataclasses.replace(architecture, windows=(8,))
    side = SIDES[architecture.backbone]
    return dataclasses.replace(spec, architecture=architecture, graphs=exported_graphs(architecture, side))


def small_network(spec: ModelSpec, seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # for buffers, which transformers itself fills
        network = build(spec.architecture, spec.side)
    randomise(network, seed)
    return network


def same_network(architecture: Architecture) -> Architecture:
    """The architecture without its generation: variants that differ only in training have the same network."""
    return dataclasses.replace(architecture, generation="")


def drawn_pixels(side: int, seed: int) -> npt.NDArray[np.float32]:
    """[1,3,side,side] in [0,1]."""
    return drawing(side, seed).pixels


def session(graph: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def assert_close(given: npt.NDArray[Any], wanted: npt.NDArray[Any], share: float = 1e-3) -> None:
    """Asserts that differences are within a share of the standard deviation of ``wanted``."""
    assert given.shape == wanted.shape
    assert np.abs(given - wanted).max() <= share * wanted.std()


@dataclass(eq=False)
class Small:
    """A small network and its two graphs in ``folder``."""

    spec: ModelSpec
    network: Any
    folder: Path
    opsets: dict[str, int]

    @property
    def encoder_file(self) -> Path:
        return self.folder / "encoder.onnx"

    @property
    def decoder_file(self) -> Path:
        return self.folder / "decoder.onnx"

    @cached_property
    def encoder(self) -> Any:
        return session(self.encoder_file)

    @cached_property
    def decoder(self) -> Any:
        return session(self.decoder_file)

    @cached_property
    def report(self) -> Report:
        """The parity check on one drawing."""
        return self.check(self.encoder_file, self.decoder_file)

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.network, self.spec.architecture, self.spec.graphs)

    @cached_property
    def scene(self) -> Scene:
        return drawing(self.spec.side, seed=1)

    def check(self, encoder: Path, decoder: Path) -> Report:
        return ParityCheck(self.reference, encoder, decoder).run([self.scene], seed=1)

    def encode(self, pixels: npt.NDArray[np.float32]) -> Arrays:
        names = [name for name, _ in self.spec.encoder.outputs]
        return dict(zip(names, self.encoder.run(names, {self.spec.encoder.image: pixels}), strict=True))

    @cached_property
    def embeddings(self) -> Arrays:
        """Embeddings of three images, one row each."""
        images = [drawn_pixels(self.spec.side, seed) for seed in (1, 2, 3)]
        return self.encode(np.concatenate(images))

    def embedding(self, row: int = 0) -> Arrays:
        return {name: rows[row : row + 1] for name, rows in self.embeddings.items()}

    def decode(
        self, feeds: Mapping[str, npt.NDArray[np.float32]]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """(masks, scores)."""
        masks, scores = self.decoder.run([self.spec.decoder.masks, self.spec.decoder.scores], dict(feeds))
        return masks, scores

    def points(self, rows: int, count: int, seed: int = 0) -> Arrays:
        """Random points, alternately object and background."""
        coords = np.random.default_rng(seed).random((rows, count, 2), np.float32) * self.spec.side
        labels = np.tile(np.arange(count) % 2 == 0, (rows, 1)).astype(np.float32)
        return {self.spec.decoder.points: coords, self.spec.decoder.labels: labels}

    def mask(self, rows: int = 1, seed: int = 0) -> npt.NDArray[np.float32]:
        """Logits of another prompt, as a client would send them back."""
        masks, _ = self.decode(self.embedding() | self.points(rows, 1, seed + 100))
        return masks[:, :1].clip(-32, 32)


SmallFactory = Callable[[str], Small]


def make_small(model_id: str, folder: Path) -> Small:
    spec = small_spec(model_id)
    network = small_network(spec)
    return Small(spec, network, folder, write_graphs(network, spec, spec.graphs, folder))


def state_of(network: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}
