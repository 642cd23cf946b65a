from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.repository_helpers import (
    Weights,
    config_names,
    content_below,
    files_below,
    nothing_left_beside,
    write_models,
)
from triton_sam.errors import SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.repository import model_folders
from triton_sam.repository.model_folders import versions
from triton_sam.repository.segmenters import (
    choose_name,
    find_name,
    find_profile_models,
    find_segmenters,
    is_current,
    remove_models,
    write_plain_model,
)

SPEC = get_spec(DEFAULT_MODEL)
LARGE = get_spec("sam2.1:large")
SMALL = get_spec("sam2.1:small")
EXPORTED_TINY = dataclasses.replace(SPEC, graphs=get_spec("sam2.1:tiny").graphs)


# a new model


def test_write_models(graphs: tuple[Path, Path], repository: Path) -> None:
    names = write_models(SPEC, *graphs, repository)
    assert names == ["sam2", "sam2_encoder", "sam2_decoder"]
    assert files_below(repository) == {
        "sam2/config.pbtxt",
        "sam2/1/model.py",
        "sam2/1/encoder.onnx",
        "sam2/1/decoder.onnx",
        "sam2/1/graphs.json",
        "sam2_encoder/config.pbtxt",
        "sam2_encoder/1/model.onnx",
        "sam2_decoder/config.pbtxt",
        "sam2_decoder/1/model.onnx",
    }
    content = content_below(repository)
    assert content["sam2/1/encoder.onnx"] == content["sam2_encoder/1/model.onnx"] == graphs[0].read_bytes()
    assert content["sam2/1/decoder.onnx"] == content["sam2_decoder/1/model.onnx"] == graphs[1].read_bytes()
    assert config_names(repository) == {name: name for name in names}
    source = content["sam2/1/model.py"].decode()
    assert "from triton_sam.backend.segmenter import TritonPythonModel" in source
    compile(source, "model.py", "exec")
    assert nothing_left_beside(repository)
    assert is_current(SPEC, repository)


def test_external_data_keep_their_name(weights: Weights, repository: Path) -> None:
    write_models(LARGE, *weights.make(data=True), repository)
    content = content_below(repository)
    assert content["sam2/1/encoder.onnx_data"] == content["sam2_encoder/1/encoder.onnx_data"] == b"numbers "
    assert "sam2_encoder/1/model.onnx" in content
    assert not [name for name in content if name.startswith("sam2_decoder") and name.endswith("_data")]


def test_external_data_of_a_graph_with_another_name(weights: Weights, repository: Path) -> None:
    encoder, decoder = weights.make(data=True)
    odd = encoder.with_name("odd.onnx")
    encoder.rename(odd)
    (encoder.with_name("encoder.onnx_data")).rename(odd.with_name("odd.onnx_data"))
    with pytest.raises(SetupError, match=r"call the graph encoder\.onnx"):
        write_models(SPEC, odd, decoder, repository)
    assert not repository.exists()


def test_a_repository_stands_without_the_weights(graphs: tuple[Path, Path], repository: Path) -> None:
    write_models(SPEC, *graphs, repository)
    before = content_below(repository)
    shutil.rmtree(graphs[0].parent)
    assert content_below(repository) == before


def test_files_are_copied_where_they_cannot_be_linked(
    graphs: tuple[Path, Path], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another file system")

    monkeypatch.setattr(os, "link", refuse)
    write_models(SPEC, *graphs, repository)
    copied = repository / "sam2/1/encoder.onnx"
    assert copied.read_bytes() == graphs[0].read_bytes()
    assert not copied.is_symlink()
    assert not copied.samefile(graphs[0])


def test_other_models_of_the_repository_are_left_alone(graphs: tuple[Path, Path], repository: Path) -> None:
    mine = repository / "my_model" / "config.pbtxt"
    mine.parent.mkdir(parents=True)
    mine.write_text('name: "my_model"')
    write_models(SPEC, *graphs, repository)
    assert mine.read_text() == 'name: "my_model"'


def test_a_repository_that_cannot_be_made(graphs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SetupError, match="cannot write models to"):
        write_models(SPEC, *graphs, tmp_path / "file" / "repository")


def test_a_repository_on_a_mount_of_its_own(
    graphs: tuple[Path, Path], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folders, "_scratch_parent", lambda folder: folder)
    write_models(SPEC, *graphs, repository)
    assert sorted(path.name for path in repository.iterdir()) == ["sam2", "sam2_decoder", "sam2_encoder"]


# names


def test_the_first_of_a_family_has_its_name_and_others_their_own(weights: Weights, repository: Path) -> None:
    assert choose_name(SPEC, repository) == "sam2"
    write_models(SPEC, *weights.make("tiny"), repository)
    names = write_models(LARGE, *weights.make("large"), repository)
    assert names == ["sam2.1_large", "sam2.1_large_encoder", "sam2.1_large_decoder"]
    assert find_segmenters(repository) == {"sam2": SPEC, "sam2.1_large": LARGE}
    assert (find_name(SPEC, repository), find_name(LARGE, repository)) == ("sam2", "sam2.1_large")
    assert find_name(SMALL, repository) is None
    assert is_current(SPEC, repository)
    assert is_current(LARGE, repository)
    assert choose_name(get_spec("sam1:mobile"), repository) == "sam1"


def test_a_model_keeps_its_name(weights: Weights, repository: Path) -> None:
    write_models(SPEC, *weights.make("tiny"), repository)
    write_models(LARGE, *weights.make("large"), repository)
    remove_models(SPEC, repository)
    assert choose_name(LARGE, repository) == "sam2.1_large"
    assert choose_name(SPEC, repository) == "sam2"


@pytest.mark.parametrize("already_there", [False, True])
def test_a_new_default(already_there: bool, weights: Weights, repository: Path) -> None:
    write_models(SPEC, *weights.make("tiny"), repository)
    write_models(SPEC, *weights.make("tiny 2"), repository)
    if already_there:
        write_models(LARGE, *weights.make("large"), repository)
    assert choose_name(LARGE, repository, make_default=True) == "sam2"
    write_models(LARGE, *weights.make("large"), repository, name="sam2")
    assert find_segmenters(repository) == {"sam2": LARGE, "sam2_tiny": SPEC}
    everything = {f"{name}{twin}" for name in ("sam2", "sam2_tiny") for twin in ("", "_encoder", "_decoder")}
    assert config_names(repository) == {name: name for name in everything}
    content = content_below(repository)
    assert content["sam2_tiny/2/encoder.onnx"] == content["sam2_tiny_encoder/2/model.onnx"] == b"the encoder tiny 2"
    assert content["sam2/1/encoder.onnx"] == content["sam2_encoder/1/model.onnx"] == b"the encoder large"
    assert versions(repository / "sam2_tiny_decoder") == [1, 2]
    assert is_current(SPEC, repository)
    assert is_current(LARGE, repository)
    assert choose_name(LARGE, repository, make_default=True) == "sam2"
    assert choose_name(SPEC, repository, make_default=True) == "sam2"
    assert find_segmenters(repository) == {"sam2": SPEC, "sam2.1_large": LARGE}
    assert nothing_left_beside(repository)


@pytest.mark.parametrize("config", [None, 'name: "sam2" backend: "python"', "this is no config {"])
@pytest.mark.parametrize("make_default", [False, True])
def test_a_folder_that_is_not_ours_is_not_overwritten(
    config: str | None, make_default: bool, graphs: tuple[Path, Path], repository: Path
) -> None:
    stranger = repository / "sam2"
    (stranger / "1").mkdir(parents=True)
    (stranger / "1" / "model.py").write_text("my own")
    if config is not None:
        (stranger / "config.pbtxt").write_text(config)
    before = content_below(repository)
    with pytest.raises(SetupError, match="sam2 that triton-sam did not write"):
        choose_name(SPEC, repository, make_default)
    with pytest.raises(SetupError, match="sam2 that triton-sam did not write"):
        write_models(SPEC, *graphs, repository, name="sam2")
    assert content_below(repository) == before


def test_a_raw_folder_that_is_not_ours_is_not_overwritten(graphs: tuple[Path, Path], repository: Path) -> None:
    (repository / "sam2_decoder" / "1").mkdir(parents=True)
    (repository / "sam2_decoder" / "config.pbtxt").write_text('backend: "onnxruntime"')
    with pytest.raises(SetupError, match="sam2_decoder that triton-sam did not write"):
        write_models(SPEC, *graphs, repository)
    assert sorted(path.name for path in repository.iterdir()) == ["sam2_decoder"]


def test_another_models_name_is_not_taken(graphs: tuple[Path, Path], repository: Path) -> None:
    write_models(SPEC, *graphs, repository)
    with pytest.raises(SetupError, match=r"sam2 in .* is sam2:tiny"):
        write_models(LARGE, *graphs, repository, name="sam2")


def test_remove_models(weights: Weights, repository: Path) -> None:
    write_models(SPEC, *weights.make("tiny"), repository)
    write_models(LARGE, *weights.make("large"), repository)
    assert remove_models(LARGE, repository) == ["sam2.1_large", "sam2.1_large_encoder", "sam2.1_large_decoder"]
    assert find_segmenters(repository) == {"sam2": SPEC}
    assert remove_models(LARGE, repository) == []
    remove_models(SPEC, repository)
    assert list(repository.iterdir()) == []
    assert nothing_left_beside(repository)


def test_nothing_is_made_to_remove_nothing(repository: Path) -> None:
    assert remove_models(SPEC, repository) == []
    assert not repository.exists()


# profiles


def write_profile(name: str, model: Path, repository: Path, dims: int = 8) -> str:
    return write_plain_model(
        name,
        model,
        repository,
        inputs=[("image", "TYPE_FP32", [-1, 3, dims, dims])],
        outputs=[("features", "TYPE_FP32", [-1, 4])],
        profile="tool",
    )


def test_a_folder_for_a_foreign_tool(weights: Weights, repository: Path) -> None:
    encoder, _ = weights.make(data=True)
    assert write_profile("tool_encoder", encoder, repository) == "tool_encoder"
    assert files_below(repository) == {
        "tool_encoder/config.pbtxt",
        "tool_encoder/1/model.onnx",
        "tool_encoder/1/encoder.onnx_data",
    }
    assert find_profile_models(repository) == ["tool_encoder"]
    assert find_segmenters(repository) == {}
    write_profile("tool_encoder", encoder, repository)
    assert versions(repository / "tool_encoder") == [1]
    write_profile("tool_encoder", weights.make("2")[0], repository)
    assert versions(repository / "tool_encoder") == [1, 2]


def test_it_is_left_alone_by_the_others(weights: Weights, repository: Path) -> None:
    write_profile("sam2_encoder", weights.make("tool")[0], repository)
    before = content_below(repository)
    assert write_models(SPEC, *weights.make("tiny"), repository) == ["sam2", "sam2_decoder"]
    assert is_current(SPEC, repository)
    choose_name(LARGE, repository, make_default=True)
    write_models(LARGE, *weights.make("large"), repository, name="sam2")
    remove_models(LARGE, repository)
    assert {name: data for name, data in content_below(repository).items() if name in before} == before
    assert find_profile_models(repository) == ["sam2_encoder"]
    assert sorted(find_segmenters(repository)) == ["sam2_tiny"]


def test_a_profile_may_replace_only_our_own_plain_graph(weights: Weights, repository: Path) -> None:
    write_models(SPEC, *weights.make("tiny"), repository)
    write_profile("sam2_encoder", weights.make("tool")[0], repository)
    assert versions(repository / "sam2_encoder") == [1, 2]
    assert find_profile_models(repository) == ["sam2_encoder"]
    assert is_current(SPEC, repository)
    (repository / "mine").mkdir()
    for taken in ("mine", "sam2"):
        with pytest.raises(SetupError, match=f"{taken} that triton-sam did not write"):
            write_profile(taken, weights.make("tool")[0], repository)


def test_a_graph_that_is_missing(tmp_path: Path, repository: Path) -> None:
    with pytest.raises(SetupError, match="is missing"):
        write_profile("tool_encoder", tmp_path / "nothing.onnx", repository)
    assert not repository.exists()


# what stands there


@pytest.mark.parametrize(
    "config",
    [
        None,
        b"",
        b"this is no config {",
        b'name: "x" no_such_field: 1',
        b"\xff\xfe\x00\x01 binary",
        b'name: "x" backend: "python"',
        b'name: "x" parameters { key: "model_id" value { string_value: "sam9:unknown" } }',
    ],
    ids=["none", "empty", "broken", "unknown field", "binary", "foreign", "unknown model"],
)
def test_stray_folders_and_broken_configs_are_ignored(
    config: bytes | None, graphs: tuple[Path, Path], repository: Path
) -> None:
    write_models(SPEC, *graphs, repository)
    stray = repository / "a_stray_folder"
    stray.mkdir()
    if config is not None:
        (stray / "config.pbtxt").write_bytes(config)
    (repository / "a_stray_file").write_text("x")
    shutil.copytree(repository / "sam2", repository / ".hidden")
    assert find_segmenters(repository) == {"sam2": SPEC}


def test_a_config_that_is_a_folder_is_ignored(repository: Path) -> None:
    (repository / "odd" / "config.pbtxt").mkdir(parents=True)
    assert find_segmenters(repository) == {}


def test_a_renamed_folder_is_found_under_its_folder_name(graphs: tuple[Path, Path], repository: Path) -> None:
    write_models(SPEC, *graphs, repository)
    (repository / "sam2").rename(repository / "renamed")
    assert list(find_segmenters(repository)) == ["renamed"]


def test_no_repository_has_no_segmenters(repository: Path) -> None:
    assert find_segmenters(repository) == {}
    assert find_profile_models(repository) == []
