from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.repository_helpers import content_below, parsed
from triton_sam.errors import InvalidInput, WeightsError
from triton_sam.export import encoder_adapter
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import ModelSpec, Precision, graphs_to_json
from triton_sam.models.weights import WeightStore, silent
from triton_sam.repository import profiles
from triton_sam.repository.export_cache import ExportRequest
from triton_sam.repository.profiles import PAINTERA, ProfileModel, get_profile, set_up_profile, write_profile_model
from triton_sam.repository.segmenters import find_profile_models

pytestmark = pytest.mark.torch

NAMES = {
    "sam1:vit_h": "sam1_encoder",
    "sam2.1:large": "sam2.1_large_encoder",
    "sam3:full": "sam3_tracker_encoder_fp16",
}


def export(folder: Path, spec: ModelSpec) -> Path:
    """What an export leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "encoder.onnx").write_bytes(f"encoder of {spec.id}".encode())
    (folder / "decoder.onnx").write_bytes(b"decoder")
    (folder / "graphs.json").write_text(graphs_to_json(spec.graphs))
    return folder


class World:
    """A store and an exporter that only note what they are asked for."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.repository = home / "model_repository"
        self.store = WeightStore(home)
        self.exported: list[tuple[str, ExportRequest]] = []
        self.pulled: list[str] = []
        self.adapted: list[tuple[str, dict[str, str], tuple[float, float]]] = []
        monkeypatch.setattr(profiles, "export_model", self._export)
        monkeypatch.setattr(WeightStore, "pull_plain", self._pull)
        monkeypatch.setattr(encoder_adapter, "adapt_encoder", self._adapt)

    def _export(self, spec: ModelSpec, _store: object, request: ExportRequest, *_: object, **__: object) -> Any:
        self.exported.append((spec.id, request))
        return export(self.home / "exports" / spec.variant_name, spec), {}

    def _pull(self, spec: ModelSpec, _progress: object) -> Path:
        self.pulled.append(spec.id)
        folder = self.home / "plain"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "vision_encoder.onnx").write_bytes(b"ready-made")
        (folder / "vision_encoder.onnx_data").write_bytes(b"numbers")
        return folder

    def _adapt(self, graph: Path, target: Path, *, outputs: dict[str, str], pixel_range: tuple[float, float]) -> None:
        self.adapted.append((graph.parent.name, dict(outputs), pixel_range))
        target.write_bytes(b"adapted " + graph.read_bytes())
        target.with_name(f"{target.name}_data").write_bytes(b"adapted numbers")

    def set_up(self, ids: list[str] | None = None, **wishes: Any) -> list[str]:
        self.said: list[str] = []
        return set_up_profile(
            PAINTERA, ids, self.store, self.repository, silent, ExportRequest(**wishes), self.said.append
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path / "home", monkeypatch)


# what Paintera calls


def test_what_paintera_calls() -> None:
    assert get_profile("paintera") is PAINTERA
    assert {model.model_id: model.name for model in PAINTERA.models} == NAMES
    for model in PAINTERA.models:
        outputs = [name for name, _ in get_spec(model.model_id).encoder.outputs]
        assert set(model.outputs) <= set(outputs)
    sam1, sam2, sam3 = PAINTERA.models
    assert (sam1.is_ours, sam2.is_ours, sam3.is_ours) == (True, False, False)
    assert dict(sam2.outputs) == {"image_embeddings": "image_embed"}
    assert sam3.pixel_range == (-1.0, 1.0)
    plain = [file.name for file in get_spec(sam3.model_id).plain_files]
    assert sam3.ready_made in plain


def test_an_unknown_profile() -> None:
    with pytest.raises(InvalidInput, match="there is no profile 'napari': known are paintera"):
        get_profile("napari")


# choices


def test_all_models_of_a_profile(world: World) -> None:
    assert world.set_up() == list(NAMES.values())
    assert world.exported == [("sam1:vit_h", ExportRequest()), ("sam2.1:large", ExportRequest())]
    assert world.pulled == ["sam3:full"]
    assert world.said == [f"{name} from {model_id}" for model_id, name in NAMES.items()]
    assert sorted(find_profile_models(world.repository)) == sorted(NAMES.values())


@pytest.mark.parametrize("model_id", NAMES)
def test_one_model_of_a_profile(model_id: str, world: World) -> None:
    assert world.set_up([model_id]) == [NAMES[model_id]]
    assert [path.name for path in world.repository.iterdir()] == [NAMES[model_id]]


def test_a_model_that_the_tool_does_not_call(world: World) -> None:
    with pytest.raises(InvalidInput) as caught:
        world.set_up(["sam1:vit_h", "sam2:tiny"])
    assert str(caught.value) == "Paintera 1.14 does not call sam2:tiny: it calls sam1:vit_h, sam2.1:large, sam3:full"
    assert world.exported == []
    assert not world.repository.exists()


@pytest.mark.parametrize("ids", [None, ["sam1:vit_h", "sam2.1:large"]])
def test_one_checkpoint_for_several_models(ids: list[str] | None, world: World) -> None:
    with pytest.raises(InvalidInput, match="--checkpoint goes with one model of a profile: name its id too"):
        world.set_up(ids, checkpoint=Path("mine.pt"))
    assert world.exported == []


def test_a_checkpoint_of_the_users_own(world: World) -> None:
    world.set_up(["sam1:vit_h"], checkpoint=Path("mine.pt"))
    assert world.exported == [("sam1:vit_h", ExportRequest(Path("mine.pt")))]


@pytest.mark.parametrize(
    "wishes", [{"checkpoint": Path("sam3.pt")}, {"precision": Precision.FP16}, {"image_size": 504}], ids=str
)
def test_wishes_that_the_ready_made_graph_does_not_grant(wishes: dict[str, Any], world: World) -> None:
    world.set_up(["sam3:full"], **wishes)
    assert world.pulled == []
    assert world.exported == [("sam3:full", ExportRequest(**wishes))]
    assert world.adapted == [("sam3_full", {}, (-1.0, 1.0))]


def test_what_cannot_be_had_leaves_no_repository(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise WeightsError("no way")

    monkeypatch.setattr(WeightStore, "pull_plain", fail)
    with pytest.raises(WeightsError):
        world.set_up(["sam3:full"])
    assert not world.repository.exists()


# what is written


def tensors(entries: Any) -> list[tuple[str, list[int]]]:
    return [(entry.name, list(entry.dims)) for entry in entries]


@pytest.mark.parametrize(
    ("model_id", "image", "outputs"),
    [
        ("sam1:vit_h", ("image", 1024), [("image_embeddings", [-1, 256, 64, 64])]),
        (
            "sam2.1:large",
            ("image", 1024),
            [
                ("image_embed", [-1, 256, 64, 64]),
                ("high_res_feats_0", [-1, 32, 256, 256]),
                ("high_res_feats_1", [-1, 64, 128, 128]),
            ],
        ),
        (
            "sam3:full",
            ("pixel_values", 1008),
            [
                ("image_embeddings.0", [-1, 32, 288, 288]),
                ("image_embeddings.1", [-1, 64, 144, 144]),
                ("image_embeddings.2", [-1, 256, 72, 72]),
            ],
        ),
    ],
)
def test_the_config_has_the_tensors_that_paintera_sends(
    model_id: str, image: tuple[str, int], outputs: list[tuple[str, list[int]]], world: World
) -> None:
    world.set_up([model_id])
    config = parsed((world.repository / NAMES[model_id] / "config.pbtxt").read_text())
    name, side = image
    assert config.name == NAMES[model_id]
    assert tensors(config.input) == [(name, [-1, 3, side, side])]
    assert tensors(config.output) == outputs
    assert config.dynamic_batching.priority_levels == 2


def test_graphs_come_under_the_names_of_their_data(world: World) -> None:
    world.set_up()
    content = {name: data for name, data in content_below(world.repository).items() if "config" not in name}
    assert content == {
        "sam1_encoder/1/model.onnx": b"encoder of sam1:vit_h",
        "sam2.1_large_encoder/1/model.onnx": b"adapted encoder of sam2.1:large",
        "sam2.1_large_encoder/1/sam2.1_large_encoder.onnx_data": b"adapted numbers",
        "sam3_tracker_encoder_fp16/1/model.onnx": b"ready-made",
        "sam3_tracker_encoder_fp16/1/vision_encoder.onnx_data": b"numbers",
    }
    assert world.adapted == [("sam2.1_large", {"image_embeddings": "image_embed"}, (0.0, 1.0))]


def test_an_export_is_as_it_was_afterwards(world: World) -> None:
    world.set_up(["sam2.1:large"])
    folder = world.home / "exports" / "sam2.1_large"
    assert {path.name for path in folder.iterdir()} == {"encoder.onnx", "decoder.onnx", "graphs.json"}


def test_a_failed_adaption_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_graph: Path, target: Path, **_: object) -> None:
        target.write_bytes(b"half")
        target.with_name(f"{target.name}_data").write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(encoder_adapter, "adapt_encoder", fail)
    with pytest.raises(OSError, match="disk full"):
        world.set_up(["sam2.1:large"])
    folder = world.home / "exports" / "sam2.1_large"
    assert {path.name for path in folder.iterdir()} == {"encoder.onnx", "decoder.onnx", "graphs.json"}
    assert not world.repository.exists()


def test_the_graphs_as_they_were_exported_are_described(world: World, tmp_path: Path) -> None:
    """Another image size than the catalogue's."""
    from triton_sam.models.specs import exported_graphs

    spec = get_spec("sam1:vit_h")
    folder = export(tmp_path / "e", spec)
    (folder / "graphs.json").write_text(graphs_to_json(exported_graphs(spec.architecture, 512)))
    write_profile_model(PAINTERA, ProfileModel("sam1_encoder", spec.id), folder, world.repository)
    config = parsed((world.repository / "sam1_encoder" / "config.pbtxt").read_text())
    assert tensors(config.input) == [("image", [-1, 3, 512, 512])]
    assert tensors(config.output) == [("image_embeddings", [-1, 256, 32, 32])]
