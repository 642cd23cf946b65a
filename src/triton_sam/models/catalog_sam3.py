"""The rows of SAM 3 in the catalogue: Meta's model, and a toy of its kind."""

from __future__ import annotations

from triton_sam.core.geometry import ResizePolicy
from triton_sam.models.architecture import Architecture, Backbone, ConceptArchitecture
from triton_sam.models.specs import (
    TEXT,
    TOKENIZER_FILE,
    Assembly,
    HubSource,
    ModelFile,
    ModelSpec,
    Role,
    exported_graphs,
)

#: What finds drawn shapes by words, without a download.
SHAPES_MODEL = "sam3:shapes"


def _sam3_file(name: str, size: int, sha256: str) -> ModelFile:
    source = HubSource("facebook/sam3", name, "3c879f39826c281e95690f02c7821c4de09afae7", gated=True)
    return ModelFile(Role.CHECKPOINT, name, size, sha256, (source,))


def _sam3_onnx(role: Role, name: str, size: int, sha256: str) -> ModelFile:
    source = HubSource("onnx-community/sam3-tracker-ONNX", f"onnx/{name}", "429305c8a5b3de597243d919a07e4e6bdcd00ef7")
    return ModelFile(role, name, size, sha256, (source,))


#: CLIP's, which SAM 3 has taken over unchanged: the second repository is open to all. Its checksum is not published.
_SAM3_TOKENIZER = ModelFile(
    Role.TOKENIZER,
    TOKENIZER_FILE,
    2_224_003,
    None,
    (
        HubSource("facebook/sam3", TOKENIZER_FILE, "3c879f39826c281e95690f02c7821c4de09afae7", gated=True),
        HubSource("openai/clip-vit-base-patch32", TOKENIZER_FILE),
    ),
)
_SAM3_ONNX = (
    _sam3_onnx(
        Role.ENCODER,
        "vision_encoder.onnx",
        1_275_304,
        "9f284aab8c3d8e81e9c79f7b566f9cea43b7bc9afdd920eee2390fb65b3db897",
    ),
    _sam3_onnx(
        Role.ENCODER_DATA,
        "vision_encoder.onnx_data",
        1_869_466_624,
        "838e1f0b2d0394ed3bd3b3499775dd6676524e1dfc5a7371948a76dcb69e4dd3",
    ),
    _sam3_onnx(
        Role.DECODER,
        "prompt_encoder_mask_decoder.onnx",
        213_114,
        "4f9ac85291d634ae36a21ce940e3c09671cc05b6511966e5d3d96988b12b95f8",
    ),
    _sam3_onnx(
        Role.DECODER_DATA,
        "prompt_encoder_mask_decoder.onnx_data",
        22_072_320,
        "2d870726d484cb496760fd139c21f115cf1b945c6b69583489faa2ac79f1d2ae",
    ),
)
_PERCEPTION = Architecture(
    Backbone.PERCEPTION, 1024, (32,), 16, (7, 15, 23, 31), (24,), generation="sam3", concepts=ConceptArchitecture()
)
_KINDS_WITH_TEXT = frozenset({"points", "boxes", "masks", "everything", TEXT})
_FULL = ModelSpec(
    id="sam3:full",
    family="sam3",
    title="Segment Anything 3: points, boxes, words and examples",
    licence="SAM License",
    resize=ResizePolicy.SQUASH,
    architecture=_PERCEPTION,
    graphs=exported_graphs(_PERCEPTION, 1008),
    checkpoints=(
        _sam3_file(
            "model.safetensors", 3_439_938_512, "6d06f0a5f84e435071fe6603e61d0b4cc7b40e0d39d487cfd4d67d8cc11cc14a"
        ),
        _sam3_file("sam3.pt", 3_450_062_241, "9999e2341ceef5e136daa386eecb55cb414446a00ac2b55eb2dfd2f7c3cf8c9e"),
    ),
    plain_files=_SAM3_ONNX,
    tokenizer=_SAM3_TOKENIZER,
    parameters=850.4,
    best_for="words and examples, at 1008 px on a GPU",
    access=(
        "the Hugging Face repository facebook/sam3 is gated: sign in there, accept Meta's licence, wait for the "
        "approval, then set HF_TOKEN to a token of yours with read access"
    ),
    terms="https://github.com/facebookresearch/sam3/blob/main/LICENSE",
    prompts=_KINDS_WITH_TEXT,
)

#: The same kind of network, made small: its sizes are those of training/concepts/network.py.
_SMALL_PERCEPTION = Architecture(
    Backbone.PERCEPTION,
    160,
    (6,),
    5,
    (1, 3, 5),
    (12,),
    neck=96,
    concepts=ConceptArchitecture(
        words=131,
        text_width=128,
        text_layers=2,
        text_heads=4,
        text_hidden=512,
        end_token=130,
        geometry_layers=1,
        encoder_layers=3,
        decoder_layers=4,
        heads=6,
        hidden=384,
        queries=50,
    ),
)
_SHAPES = ModelSpec(
    id=SHAPES_MODEL,
    family="sam3",
    title="a toy of the kind of Segment Anything 3 at 336 px, trained by this project on drawn shapes",
    licence="Apache-2.0",
    resize=ResizePolicy.SQUASH,
    architecture=_SMALL_PERCEPTION,
    graphs=exported_graphs(_SMALL_PERCEPTION, 336),
    assembly=Assembly("concepts/network.safetensors", "concepts/recipes", "concepts/tokenizer.json"),
    parameters=6.6,
    best_for="trying words on drawn shapes; a toy",
    prompts=_KINDS_WITH_TEXT,
)

SAM3 = (_FULL, _SHAPES)
