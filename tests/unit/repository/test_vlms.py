from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.repository_helpers import Weights, content_below, files_below, nothing_left_beside, parsed
from triton_sam.errors import SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.vlm_catalog import VLM_CATALOG, get_vlm
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.repository.model_folders import CONFIG_FILE
from triton_sam.repository.segmenters import find_profile_models, find_segmenters, write_models, write_plain_model
from triton_sam.repository.vlms import find_vlms, is_current_vlm, own_checkpoint, remove_vlm, write_vlm

LLAVA, KOSMOS = get_vlm("vlm:llava"), get_vlm("vlm:kosmos2")
rows = pytest.mark.parametrize("spec", VLM_CATALOG.values(), ids=lambda spec: spec.name)
INPUTS = {
    "image": ("TYPE_UINT8", [-1]),
    "image_b64": ("TYPE_STRING", [1]),
    "prompt": ("TYPE_STRING", [1]),
    "messages_json": ("TYPE_STRING", [1]),
    "max_new_tokens": ("TYPE_INT32", [1]),
    "temperature": ("TYPE_FP32", [1]),
    "top_p": ("TYPE_FP32", [1]),
    "seed": ("TYPE_INT64", [1]),
    "task": ("TYPE_STRING", [1]),
    "stop": ("TYPE_STRING", [-1]),
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models" / "model_repository"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder of a user's own that looks like a checkpoint."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"numbers")
    return folder


# what is written


@rows
def test_the_two_folders(spec: VlmSpec, repository: Path) -> None:
    assert write_vlm(spec, repository) == [spec.name, spec.stream_name]
    assert files_below(repository) == {
        f"{name}/{file}" for name in (spec.name, spec.stream_name) for file in ("config.pbtxt", "1/model.py")
    }
    assert nothing_left_beside(repository)
    for name, module in ((spec.name, "vlm_door"), (spec.stream_name, "vlm")):
        source = (repository / name / "1" / "model.py").read_text()
        assert f"from triton_sam.backend.{module} import TritonPythonModel" in source
        compile(source, "model.py", "exec")


@rows
@pytest.mark.parametrize("streams", [False, True])
def test_the_configs(streams: bool, spec: VlmSpec, repository: Path) -> None:
    write_vlm(spec, repository)
    name = spec.stream_name if streams else spec.name
    config = parsed((repository / name / CONFIG_FILE).read_text())
    assert (config.name, config.backend, config.max_batch_size) == (name, "python", 0)
    types = config.input[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    assert {t.name: (types[t.data_type].name, list(t.dims)) for t in config.input} == INPUTS
    assert all(tensor.optional for tensor in config.input)
    outputs = ["generated_text", "finish_reason", "usage_json", "regions_json"] + ["entities_json"] * spec.grounds
    assert [tensor.name for tensor in config.output] == outputs
    assert {(types[t.data_type].name, tuple(t.dims)) for t in config.output} == {("TYPE_STRING", (1,))}
    (group,) = config.instance_group
    assert (group.count, group.KIND_CPU) == (1, group.kind)
    assert config.model_transaction_policy.decoupled is streams
    assert not config.HasField("dynamic_batching")
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "vlm_id": spec.id,
        "role": "engine" if streams else "door",
        "checkpoint": "",
    }


def test_a_checkpoint_of_ones_own(repository: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint.parent)
    write_vlm(LLAVA, repository, Path("mine"))
    for name in ("llava", "llava_stream"):
        config = parsed((repository / name / CONFIG_FILE).read_text())
        assert config.parameters["checkpoint"].string_value == str(checkpoint)
    assert own_checkpoint(LLAVA, repository) == checkpoint
    assert is_current_vlm(LLAVA, repository)
    write_vlm(LLAVA, repository)
    assert own_checkpoint(LLAVA, repository) is None


def test_a_folder_that_is_no_checkpoint_changes_nothing(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"has no config\.json"):
        write_vlm(LLAVA, repository, tmp_path)
    assert not repository.exists()


def test_the_same_again_changes_nothing(repository: Path) -> None:
    write_vlm(LLAVA, repository)
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*")}
    write_vlm(LLAVA, repository)
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*")} == before


# what stands there


def test_what_is_found(repository: Path) -> None:
    assert find_vlms(repository) == {}
    write_vlm(LLAVA, repository)
    write_vlm(KOSMOS, repository)
    assert find_vlms(repository) == {"kosmos2": KOSMOS, "llava": LLAVA}


@pytest.mark.parametrize("half", ["llava", "llava_stream"])
def test_half_a_model_does_not_count_and_is_completed(half: str, repository: Path) -> None:
    write_vlm(LLAVA, repository)
    (repository / half / CONFIG_FILE).unlink()
    (repository / half / "1" / "model.py").unlink()
    (repository / half / "1").rmdir()
    (repository / half).rmdir()
    assert find_vlms(repository) == {}
    assert not is_current_vlm(LLAVA, repository)
    write_vlm(LLAVA, repository)
    assert find_vlms(repository) == {"llava": LLAVA}


@pytest.mark.parametrize("file", ["llava/config.pbtxt", "llava_stream/1/model.py"])
def test_what_another_release_wrote_is_not_current(file: str, repository: Path) -> None:
    assert not is_current_vlm(LLAVA, repository)
    write_vlm(LLAVA, repository)
    assert is_current_vlm(LLAVA, repository)
    text = (repository / file).read_text()
    (repository / file).write_text(text + "# older\n")
    assert not is_current_vlm(LLAVA, repository)
    write_vlm(LLAVA, repository)
    assert (repository / file).read_text() == text


def test_segmenters_and_models_for_other_tools_stand_beside(repository: Path, tmp_path: Path) -> None:
    spec = get_spec(DEFAULT_MODEL)
    graphs = Weights(tmp_path / "graphs").make()
    write_models(spec, *graphs, repository)
    write_plain_model("tool", graphs[0], repository, inputs=[], outputs=[], profile="tool")
    write_vlm(LLAVA, repository)
    assert find_segmenters(repository) == {"sam2": spec}
    assert find_profile_models(repository) == ["tool"]
    assert find_vlms(repository) == {"llava": LLAVA}


# what is refused


@pytest.mark.parametrize("name", ["llava", "llava_stream"])
@pytest.mark.parametrize("kind", ["empty", "no config", "somebody's", "a tool's", "another model's"])
def test_a_strange_folder_is_refused(kind: str, name: str, repository: Path, tmp_path: Path) -> None:
    strange = repository / name
    if kind == "a tool's":
        graph = Weights(tmp_path / "graphs").make()[0]
        write_plain_model(name, graph, repository, inputs=[], outputs=[], profile="tool")
    elif kind == "another model's":
        write_vlm(KOSMOS, repository)
        (repository / "kosmos2").rename(strange)
    else:
        strange.mkdir(parents=True)
    if kind == "no config":
        (strange / CONFIG_FILE).write_text("what is this")
    elif kind == "somebody's":
        (strange / CONFIG_FILE).write_text(f'name: "{name}" backend: "python"')
    before = content_below(repository)
    with pytest.raises(SetupError, match=f"has a folder {name} that is no part of vlm:llava"):
        write_vlm(LLAVA, repository)
    assert content_below(repository) == before
    assert remove_vlm(LLAVA, repository) == []
    assert content_below(repository) == before


def test_a_segmenter_does_not_take_a_name_that_is_taken(repository: Path, tmp_path: Path) -> None:
    write_vlm(LLAVA, repository)
    graphs = Weights(tmp_path / "graphs").make()
    with pytest.raises(SetupError, match="has a folder llava"):
        write_models(get_spec(DEFAULT_MODEL), *graphs, repository, name="llava")
    with pytest.raises(SetupError, match="has a folder llava"):
        write_plain_model("llava", graphs[0], repository, inputs=[], outputs=[], profile="tool")


# removal


def test_removal(repository: Path) -> None:
    assert remove_vlm(LLAVA, repository) == []
    assert not repository.exists()
    write_vlm(LLAVA, repository)
    write_vlm(KOSMOS, repository)
    assert remove_vlm(LLAVA, repository) == ["llava", "llava_stream"]
    assert find_vlms(repository) == {"kosmos2": KOSMOS}
    assert sorted(path.name for path in repository.iterdir()) == ["kosmos2", "kosmos2_stream"]
    assert nothing_left_beside(repository)
