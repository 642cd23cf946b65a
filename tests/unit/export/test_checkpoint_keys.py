from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from tests.unit.export import official, official_concepts
from tests.unit.export.conversion_scripts import converted
from tests.unit.export.families import FAMILIES
from tests.unit.export.small import small_network, small_spec, state_of
from triton_sam.errors import InvalidInput, WeightsError
from triton_sam.export.checkpoint import fill, network_of, recognise
from triton_sam.export.checkpoint_keys import MappedWeights, map_keys
from triton_sam.models.architecture import Backbone
from triton_sam.models.catalog import CATALOG, get_spec
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import ModelSpec
from triton_sam.models.weights import WeightStore
from triton_sam.networks.segmenters import build
from triton_sam.settings import get_settings

pytestmark = pytest.mark.torch

#: Models of which checkpoints are published.
PUBLISHED = [model_id for model_id, spec in CATALOG.items() if spec.assembly is None]
TWINS = ("prompt_encoder.shared_embedding.positional_embedding", "shared_image_embedding.positional_embedding")


def meta_network(spec: ModelSpec) -> dict[str, Tensor]:
    """Names and shapes of a full-size network with all its parts, in no memory of the machine."""
    with torch.device("meta"):
        traits = MEMORY_TRAITS.get(spec.architecture.generation)
        concepts = spec.architecture.concepts is not None
        return dict(build(spec.architecture, spec.side, traits, concepts=concepts).state_dict())


def whole(mapped: MappedWeights) -> dict[str, Tensor]:
    return mapped.tensors | mapped.memory | mapped.concepts


def assert_fits(mapped: MappedWeights, expected: dict[str, Tensor]) -> None:
    """Nothing missing, nothing unknown, nothing misshapen."""
    found = {name: tuple(tensor.shape) for name, tensor in whole(mapped).items()}
    assert found == {name: tuple(tensor.shape) for name, tensor in expected.items()}


# the official files, at full size


@pytest.mark.parametrize("model_id", [model_id for model_id in PUBLISHED if model_id != "sam3:full"])
def test_our_list_of_keys_has_the_size_of_the_official_file(model_id: str) -> None:
    """Keeps the lists here honest: torch.save adds some 300 bytes to each tensor, and nothing else is in the files."""
    spec = get_spec(model_id)
    shapes = official.checkpoint(spec.architecture, spec.side)
    overhead = spec.checkpoints[0].size - 4 * sum(math.prod(shape) for shape in shapes.values())
    assert 250 <= overhead / len(shapes) <= 400


@pytest.mark.parametrize("model_id", PUBLISHED)
def test_an_official_checkpoint_at_full_size(model_id: str) -> None:
    spec = get_spec(model_id)
    mapped = map_keys(official.without_values(official.checkpoint(spec.architecture, spec.side)))
    assert_fits(mapped, meta_network(spec))
    assert sorted(mapped.unused) == sorted(official.unused(spec.architecture))
    assert recognise(mapped) == [spec]


@pytest.mark.parametrize("model_id", [model_id for model_id in PUBLISHED if CATALOG[model_id].family == "sam2"])
def test_an_image_mode_checkpoint_may_be_of_either_generation(model_id: str) -> None:
    spec = get_spec(model_id)
    mapped = map_keys(official.without_values(official.sam2(spec.architecture, video=False)))
    variant = model_id.partition(":")[2]
    assert mapped.generation == ""
    assert mapped.unused == []
    assert mapped.memory == {}
    assert [row.id for row in recognise(mapped)] == [f"sam2.1:{variant}", f"sam2:{variant}"]


@pytest.mark.part("exports")
def test_the_real_mobile_sam() -> None:
    spec = get_spec("sam1:mobile")
    try:
        file = WeightStore(get_settings().home).pull_checkpoint(spec)
    except WeightsError as error:
        pytest.skip(f"the checkpoint of {spec.id} cannot be had here: {error}")
    state = torch.load(file, map_location="cpu", weights_only=True)
    shapes = {key: tuple(tensor.shape) for key, tensor in state.items()}
    assert shapes == official.mobile(spec.architecture)
    mapped = map_keys(state)
    assert sorted(mapped.unused) == sorted(official.MOBILE_UNUSED)
    network = build(spec.architecture, spec.side)
    fill(network, mapped)
    assert torch.equal(network.vision_encoder.neck[2].weight, state["image_encoder.neck.2.weight"])


# values


def expected_values(state: dict[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """What transformers' own conversion scripts make of a checkpoint."""
    backbone = spec.architecture.backbone
    unused = set(official.unused(spec.architecture))
    concepts = set() if spec.architecture.concepts is None else set(official_concepts.concepts(spec.architecture))
    wanted = {converted(key, backbone): state[key] for key in state if key not in unused | concepts}
    wanted |= {f"concepts.{official_concepts.converted(key)}": state[key] for key in concepts}
    wanted[TWINS[1]] = wanted[TWINS[0]]
    if backbone in (Backbone.HIERA, Backbone.PERCEPTION):
        rows = [wanted.pop(f"prompt_encoder.point_embed.{label}.weight") for label in range(4)]
        wanted["prompt_encoder.point_embed.weight"] = torch.cat(rows)
    if backbone is Backbone.PERCEPTION:
        table = "vision_encoder.backbone.embeddings.position_embeddings"
        wanted[table] = wanted[table][:, 1:]
        for name in [name for name in wanted if ".qkv." in name or ".in_proj_" in name]:
            joined = wanted.pop(name)
            width = len(joined) // 3
            for part, letter in enumerate("qkv"):
                new = name.replace("qkv", f"{letter}_proj").replace("in_proj_", f"{letter}_proj.")
                wanted[new] = joined[part * width : (part + 1) * width]
    return wanted


@pytest.mark.parametrize("model_id", [*FAMILIES, "sam2:tiny", "sam2:large"])
def test_every_tensor_comes_to_its_place(model_id: str) -> None:
    spec = small_spec(model_id)
    state = official.tensors(official.checkpoint(spec.architecture, spec.side))
    mapped = map_keys(state)
    wanted = expected_values(state, spec)
    found = whole(mapped)
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
    network = network_of(spec, spec.side, mapped)
    loaded = network.state_dict()
    assert set(loaded) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(loaded[name], tensor), name


def test_the_origin_of_a_tensor_is_known() -> None:
    spec = small_spec("sam3:full")
    mapped = map_keys(official.tensors(official.sam3(spec.architecture)))
    trunk = "detector.backbone.vision_backbone.trunk."
    origin = mapped.origin
    for letter in "qkv":
        name = f"vision_encoder.backbone.layers.1.attention.{letter}_proj.bias"
        assert origin[name] == f"{trunk}blocks.1.attn.qkv.bias"
    assert origin["vision_encoder.backbone.embeddings.position_embeddings"] == f"{trunk}pos_embed"
    assert origin["prompt_encoder.point_embed.weight"] == "tracker.sam_prompt_encoder.point_embeddings.0.weight"
    assert set(origin) == set(whole(mapped)) - {TWINS[1]}


def test_what_finds_concepts_is_loaded_where_a_checkpoint_has_it() -> None:
    spec = small_spec("sam3:full")
    state = official.tensors(official.sam3(spec.architecture))
    assert hasattr(network_of(spec, spec.side, map_keys(state)), "concepts")
    queries = "detector.transformer.decoder.query_embed.weight"
    mapped = map_keys({key: tensor for key, tensor in state.items() if key != queries})
    assert mapped.concepts == {}
    assert set(official_concepts.concepts(spec.architecture)) - {queries} <= set(mapped.unused)
    assert not hasattr(network_of(spec, spec.side, mapped), "concepts")
    damaged = {key: tensor for key, tensor in state.items() if "dot_prod_scoring.hs_proj" not in key}
    with pytest.raises(InvalidInput, match=r"2 missing \(concepts.dot_product_scoring.query_proj.weight"):
        network_of(spec, spec.side, map_keys(damaged))


def test_an_unknown_key_is_kept_and_reported() -> None:
    spec = small_spec("sam1:vit_b")
    mapped = map_keys(official.tensors(official.sam1(spec.architecture, spec.side)) | {"novelty": torch.zeros(3)})
    assert "novelty" in mapped.tensors
    assert mapped.origin["novelty"] == "novelty"
    assert mapped.unused == []


def test_buffers_of_the_whole_model_are_not_needed() -> None:
    """Files saved from a whole ``Sam`` with persistent buffers have the normalisation in them."""
    spec = small_spec("sam1:vit_b")
    state = official.tensors(official.sam1(spec.architecture, spec.side))
    buffers = {"pixel_mean": torch.zeros(3, 1, 1), "pixel_std": torch.ones(3, 1, 1)}
    assert map_keys(state | buffers).unused == ["pixel_mean", "pixel_std"]


# Hugging Face's names


@pytest.mark.parametrize("model_id", FAMILIES)
def test_transformers_own_names_stay(model_id: str) -> None:
    state = state_of(small_network(small_spec(model_id)))
    mapped = map_keys(state)
    assert mapped.unused == []
    assert set(mapped.tensors) == set(state)
    assert all(mapped.tensors[name] is state[name] for name in state)


@pytest.mark.parametrize("model_id", FAMILIES)
@pytest.mark.parametrize("left_out", TWINS)
def test_either_of_the_two_position_tables_is_enough(model_id: str, left_out: str) -> None:
    """``save_pretrained`` writes tied tensors once."""
    state = state_of(small_network(small_spec(model_id)))
    kept = state[TWINS[0]]
    state[TWINS[1]] = kept
    del state[left_out]
    mapped = map_keys(state)
    assert mapped.tensors[TWINS[0]] is mapped.tensors[TWINS[1]] is kept


def hub_video_names(name: str) -> str:
    """Where the whole SAM 3 of Hugging Face has what we call so."""
    if name.startswith("concepts.neck."):
        return name.replace("concepts.", "detector_model.vision_encoder.")
    if name.startswith("concepts."):
        return name.replace("concepts.", "detector_model.")
    if name.startswith("vision_encoder.backbone."):
        return f"detector_model.{name}"
    if name.startswith("vision_encoder.neck."):
        return name.replace("vision_encoder.neck.", "tracker_neck.")
    return f"tracker_model.{name}"


def test_the_whole_sam3_of_hugging_face() -> None:
    state = state_of(small_network(small_spec("sam3:full")))
    whole = {hub_video_names(name): tensor for name, tensor in state.items()}
    strangers = [
        # Without a detector's queries, these are of no use.
        "detector_model.vision_encoder.neck.fpn_layers.0.proj1.weight",
        "detector_model.text_encoder.text_model.embeddings.token_embedding.weight",
        "detector_model.detr_encoder.layers.0.self_attn.q_proj.weight",
        "detector_model.mask_decoder.pixel_decoder.conv_layers.0.weight",
        "tracker_model.no_memory_positional_encoding",
        # Without an attention to memories, these are of no use.
        "tracker_model.no_object_pointer",
        "tracker_model.memory_encoder.projection.weight",
    ]
    mapped = map_keys(whole | {name: torch.zeros(2) for name in strangers})
    assert mapped.unused == strangers
    assert set(mapped.tensors) == set(state)
    assert all(mapped.tensors[name] is state[name] for name in state)
    assert mapped.origin["vision_encoder.neck.fpn_layers.0.proj1.weight"] == "tracker_neck.fpn_layers.0.proj1.weight"


@pytest.mark.parametrize("generation", ["sam2", "sam2.1"])
def test_the_video_sam2_of_hugging_face(generation: str) -> None:
    """``facebook/sam2*-hiera-*`` hold transformers' video network; its own class names the keys here."""
    from transformers import Sam2VideoConfig, Sam2VideoModel

    spec = get_spec(f"{generation}:tiny")
    later = generation == "sam2.1"
    config = Sam2VideoConfig(
        enable_occlusion_spatial_embedding=later, enable_temporal_pos_encoding_for_object_pointers=later
    )
    with torch.device("meta"):
        whole = dict(Sam2VideoModel(config).state_dict())
    mapped = map_keys(whole)
    assert_fits(mapped, meta_network(spec))
    assert mapped.unused == ["no_memory_positional_encoding"]
    assert mapped.generation == generation
    assert recognise(mapped) == [spec]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # an import of transformers' own
def test_the_video_sam3_of_hugging_face() -> None:
    """``facebook/sam3`` holds transformers' whole video network; its own class names the keys here."""
    from transformers import Sam3VideoConfig, Sam3VideoModel

    with torch.device("meta"):
        whole = dict(Sam3VideoModel(Sam3VideoConfig()).state_dict())
    spec = get_spec("sam3:full")
    mapped = map_keys(whole)
    needed = meta_network(spec)
    assert_fits(mapped, needed)
    assert mapped.unused == [key for key in whole if key not in {hub_video_names(name) for name in needed}]
    assert recognise(mapped) == [spec]


# recognition


@pytest.mark.parametrize("model_id", PUBLISHED)
def test_hugging_face_files_are_recognised(model_id: str) -> None:
    spec = get_spec(model_id)
    rows = recognise(map_keys(meta_network(spec)))
    assert spec in rows
    assert {row.id.partition(":")[2] for row in rows} == {model_id.partition(":")[2]}


def test_other_widths_and_depths_are_not_recognised() -> None:
    spec = get_spec("sam2.1:tiny")
    for change in ({"width": 48}, {"depths": (1, 2, 7, 3)}):
        architecture = dataclasses.replace(spec.architecture, **change)
        assert recognise(map_keys(official.without_values(official.sam2(architecture)))) == []


def test_what_is_no_network_of_ours_is_not_recognised() -> None:
    assert recognise(map_keys({"resnet.conv1.weight": torch.zeros(8, 3, 7, 7)})) == []
