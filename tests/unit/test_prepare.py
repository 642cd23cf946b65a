"""Which models are served, and which of them are set up first."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.unit.serving_helpers import LARGE, LLAVA, SHAPES, SPEC, write_profile, write_repository
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import EIGHT_BIT_ENCODER_FILE, NETWORK_FILE
from triton_sam.models.vlm_weights import VlmStore, bundled_folder
from triton_sam.models.weights import WeightStore
from triton_sam.repository import availability
from triton_sam.repository.segmenters import has_file, write_models
from triton_sam.repository.setup import SetupRequest
from triton_sam.repository.vlms import find_vlms, own_checkpoint, write_vlm
from triton_sam.server import selection
from triton_sam.server.selection import ModelSelection, prepare
from triton_sam.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def set_ups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """What was set up, without weights."""
    done: list[tuple[str, Path]] = []

    def set_up(request: SetupRequest) -> list[str]:
        assert request.cpu_encoder
        assert request.fast_decoder
        done.append((request.spec.id, request.repository))
        write_repository(request.repository, request.spec, fast=request.fast_encoder)
        return []

    monkeypatch.setattr(selection, "set_up", set_up)
    return done


@pytest.mark.parametrize("fast", [None, False, True])
def test_8_bits_are_set_up_where_a_variable_asks_for_them(
    fast: bool | None, settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    write_repository(settings.repository)
    asking = settings.model_copy(update={"fast_encoder": fast})
    for _ in range(2):
        prepare([SPEC.id], asking, None)
    assert len(set_ups) == (1 if fast else 0)
    assert has_file(SPEC, settings.repository, EIGHT_BIT_ENCODER_FILE) is bool(fast)


def test_exports_are_not_set_up_for_8_bits(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    write_repository(settings.repository, LARGE)
    prepare([LARGE.id], settings.model_copy(update={"fast_encoder": True}), None)
    assert set_ups == []


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("installed", [False, True])
def test_an_older_ready_made_model(
    installed: bool,
    fast: bool,
    settings: Settings,
    set_ups: list[tuple[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its files at hand it is set up again, for what this version makes of them; else it is made from itself."""
    monkeypatch.setattr(WeightStore, "is_installed", lambda *_: installed)
    refreshed = []
    monkeypatch.setattr(selection, "refresh", lambda spec, _: refreshed.append(spec.id) or True)
    write_repository(settings.repository, fast=fast)
    (settings.repository / "sam2_encoder" / "config.pbtxt").write_text('name: "sam2_encoder"')
    prepare([SPEC.id], settings, None)
    assert (len(set_ups), len(refreshed)) == ((1, 0) if installed else (0, 1))
    assert has_file(SPEC, settings.repository, EIGHT_BIT_ENCODER_FILE) is fast, "what was asked for once stays"


def test_an_empty_repository_of_ones_own(tmp_path: Path, settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    with pytest.raises(SetupError) as caught:
        prepare([], settings, mine)
    assert str(mine) in str(caught.value)
    assert f"`triton-sam setup {DEFAULT_MODEL} --model-repository {mine}`" in str(caught.value)
    assert list(mine.iterdir()) == []
    assert set_ups == []


def test_a_repository_of_ones_own_without_the_model(
    tmp_path: Path, settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    mine = write_repository(tmp_path / "mine")
    with pytest.raises(SetupError, match="has no model sam9:huge"):
        prepare([DEFAULT_MODEL, "sam9:huge"], settings, mine)
    assert set_ups == []


@pytest.mark.parametrize("ids", [[], [DEFAULT_MODEL]])
def test_a_repository_of_ones_own_is_read_and_not_written(
    ids: list[str], tmp_path: Path, settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    mine = write_repository(tmp_path / "mine")
    before = sorted(str(path) for path in mine.rglob("*"))
    assert prepare(ids, settings, mine) == ModelSelection(mine, {"sam2": SPEC})
    assert sorted(str(path) for path in mine.rglob("*")) == before
    assert set_ups == []
    assert not settings.home.exists()


def test_nothing_set_up_yet_means_the_default_model(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    assert prepare([], settings, None) == ModelSelection(settings.repository, {"sam2": SPEC})
    assert set_ups == [(DEFAULT_MODEL, settings.repository)]


@pytest.mark.parametrize("ids", [[], [DEFAULT_MODEL]])
def test_what_is_set_up_is_not_set_up_again(
    ids: list[str], settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    write_repository(settings.repository)
    assert prepare(ids, settings, None) == ModelSelection(settings.repository, {"sam2": SPEC})
    assert set_ups == []


def test_a_model_that_is_set_up_keeps_its_name(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    write_repository(settings.repository)
    write_repository(settings.repository, LARGE)
    assert prepare([LARGE.id], settings, None).segmenters == {"sam2.1_large": LARGE}
    assert prepare([], settings, None).segmenters == {"sam2": SPEC, "sam2.1_large": LARGE}
    assert set_ups == []


def test_an_export_is_not_overwritten_because_its_config_is_of_another_release(
    settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    exported = dataclasses.replace(SPEC, graphs=get_spec("sam2.1:tiny").graphs)
    write_repository(settings.repository, exported)
    config = settings.repository / "sam2" / "config.pbtxt"
    right = config.read_text()
    config.write_text(right.replace("1024", "7"))
    assert prepare([SPEC.id], settings, None).segmenters == {"sam2": exported}
    assert set_ups == []
    assert config.read_text() == right
    assert [path.name for path in config.parent.iterdir() if path.is_dir()] == ["1"]


def test_ready_made_graphs_that_are_not_whole_are_set_up_again(
    settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    write_repository(settings.repository)
    (settings.repository / "sam2" / "1" / "decoder.onnx").unlink()
    assert prepare([], settings, None).segmenters == {"sam2": SPEC}
    assert set_ups == [(SPEC.id, settings.repository)]


@pytest.mark.parametrize("own", [False, True])
def test_models_for_foreign_tools_alone(
    own: bool, tmp_path: Path, settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    folder = write_profile(tmp_path / "mine" if own else settings.repository)
    assert prepare([], settings, folder if own else None) == ModelSelection(folder, {})
    assert set_ups == []


def test_a_family_is_the_model_with_its_name_here(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    write_repository(settings.repository)
    for repository in (None, settings.repository):
        assert prepare(["sam2"], settings, repository).segmenters == {"sam2": SPEC}
    assert set_ups == []


def test_a_family_is_its_default_where_no_model_has_its_name(
    settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    chosen = prepare(["sam1"], settings, None).segmenters
    assert [spec.id for spec in chosen.values()] == ["sam1:vit_h"]
    assert set_ups == [("sam1:vit_h", settings.repository)]


def test_an_unknown_model(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    with pytest.raises(InvalidInput, match="sam9:huge"):
        prepare([DEFAULT_MODEL, "sam9:huge"], settings, None)
    assert set_ups == []


# vision-language models


@pytest.mark.torch
@pytest.mark.parametrize("ids", [["vlm:shapes"], ["shapes"], ["vlm:shapes", "shapes"]])
def test_a_vision_language_model_alone(
    ids: list[str], settings: Settings, set_ups: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders are written, its weights are not looked for, and no segmenter is set up for it."""
    monkeypatch.setattr(VlmStore, "pull", lambda *_: pytest.fail("downloaded"))
    assert prepare(ids, settings, None) == ModelSelection(settings.repository, {}, {"shapes": SHAPES})
    assert find_vlms(settings.repository) == {"shapes": SHAPES}
    assert set_ups == []


@pytest.mark.torch
def test_both_kinds(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    expected = ModelSelection(settings.repository, {"sam2": SPEC}, {"llava": LLAVA})
    assert prepare(["vlm:llava", DEFAULT_MODEL], settings, None) == expected
    assert set_ups == [(DEFAULT_MODEL, settings.repository)]
    write_vlm(SHAPES, settings.repository)
    assert prepare([DEFAULT_MODEL], settings, None).vlms == {}
    assert prepare(["vlm:shapes"], settings, None) == ModelSelection(settings.repository, {}, {"shapes": SHAPES})
    everything = ModelSelection(settings.repository, {"sam2": SPEC}, {"llava": LLAVA, "shapes": SHAPES})
    assert prepare([], settings, None) == everything


@pytest.mark.torch
@pytest.mark.parametrize("own", [False, True])
def test_a_repository_with_vision_language_models_only(
    own: bool, tmp_path: Path, settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    repository = tmp_path / "mine" if own else settings.repository
    write_vlm(SHAPES, repository)
    assert prepare([], settings, repository if own else None) == ModelSelection(repository, {}, {"shapes": SHAPES})
    assert set_ups == []


@pytest.mark.torch
def test_a_repository_of_ones_own_without_the_vision_language_model(tmp_path: Path, settings: Settings) -> None:
    mine = write_repository(tmp_path / "mine")
    with pytest.raises(SetupError, match=rf"has no model vlm:llava: run `triton-sam setup vlm:llava .*{mine}`"):
        prepare([DEFAULT_MODEL, "llava"], settings, mine)
    write_vlm(LLAVA, mine)
    assert prepare(["llava"], settings, mine) == ModelSelection(mine, {}, {"llava": LLAVA})
    assert prepare([], settings, mine) == ModelSelection(mine, {"sam2": SPEC}, {"llava": LLAVA})


@pytest.mark.torch
def test_a_config_of_another_release_keeps_its_checkpoint(settings: Settings) -> None:
    checkpoint = bundled_folder(SHAPES)
    write_vlm(LLAVA, settings.repository, checkpoint)
    config = settings.repository / "llava" / "config.pbtxt"
    right = config.read_text()
    config.write_text(right.replace("usage_json", "usage"))
    assert prepare([], settings, None).vlms == {"llava": LLAVA}
    assert config.read_text() == right
    assert own_checkpoint(LLAVA, settings.repository) == checkpoint


def test_an_unknown_vision_language_model(settings: Settings) -> None:
    with pytest.raises(InvalidInput, match="no vision-language model 'vlm:gpt'"):
        prepare(["vlm:gpt"], settings, None)
    assert not settings.home.exists()


# packages that are missing


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "missing_module", lambda extra: "" if extra == "server" else "torch")


@pytest.mark.parametrize("own", [False, True])
def test_without_torch_the_others_are_served(
    own: bool,
    tmp_path: Path,
    settings: Settings,
    set_ups: list[tuple[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    repository = write_repository(tmp_path / "mine" if own else settings.repository)
    write_vlm(SHAPES, repository)
    without_torch(monkeypatch)
    assert prepare([], settings, repository if own else None) == ModelSelection(repository, {"sam2": SPEC})
    (warning,) = caplog.messages
    assert warning.startswith("left out: vlm:shapes needs torch: `")
    assert "[vlm]" in warning
    assert set_ups == []


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("ids", [[], ["vlm:shapes"]])
def test_without_torch_nothing_else_is_served_instead(
    ids: list[str],
    own: bool,
    tmp_path: Path,
    settings: Settings,
    set_ups: list[tuple[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who set up vlm:shapes alone did not ask for a download of the default model."""
    repository = tmp_path / "mine" if own else settings.repository
    write_vlm(SHAPES, repository)
    without_torch(monkeypatch)
    with pytest.raises(SetupError, match=r"^vlm:shapes needs torch: `.*\[vlm\].*`, then `triton-sam serve"):
        prepare(ids, settings, repository if own else None)
    assert set_ups == []


def test_the_client_alone_is_told_how_to_get_the_server(
    settings: Settings, set_ups: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "missing_module", lambda _extra: "onnxruntime")
    for ids in ([], [DEFAULT_MODEL]):
        with pytest.raises(
            SetupError, match=r"^sam2:tiny is not there: .*\[server,service\].*`triton-sam setup sam2:tiny`"
        ):
            prepare(ids, settings, None)
    assert set_ups == []


def test_weights_for_torch_alone_need_torch(
    settings: Settings, set_ups: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.home.mkdir()
    weights = settings.home / NETWORK_FILE
    weights.write_bytes(b"weights")
    write_models(LARGE, None, None, settings.repository, extras={NETWORK_FILE: weights})
    without_torch(monkeypatch)
    for ids in ([], [LARGE.id]):
        with pytest.raises(SetupError, match=r"^sam2.1:large needs torch: `.*\[torch\]"):
            prepare(ids, settings, None)
    assert set_ups == []
