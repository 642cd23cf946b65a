from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.serving_helpers import write_repository
from triton_sam.cli import app
from triton_sam.errors import InvalidInput
from triton_sam.models.catalog import DEFAULT_MODEL, FAMILY_DEFAULTS, VIDEO_MODEL
from triton_sam.models.specs import EngineChoice, Precision
from triton_sam.models.weights import WeightStore
from triton_sam.repository import profiles, setup_models
from triton_sam.repository.export_cache import ExportRequest
from triton_sam.repository.setup import SetupRequest
from triton_sam.settings import get_settings

runner = CliRunner()


@dataclass
class SetUp:
    """Takes the place of ``set_up``."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    engines: list[EngineChoice] = field(default_factory=list)
    fast: list[bool] = field(default_factory=list)

    def __call__(self, request: SetupRequest) -> list[str]:
        self.calls.append(
            (request.spec.id, request.store.home, request.repository, request.export, request.make_default)
        )
        self.engines.append(request.engine)
        self.fast.append(request.fast_encoder)
        assert request.cpu_encoder
        assert request.fast_decoder
        request.say("at work")
        write_repository(request.repository, request.spec)
        return [request.spec.family, f"{request.spec.family}_encoder"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> SetUp:
    fake = SetUp()
    monkeypatch.setattr(setup_models, "set_up", fake)
    return fake


@pytest.mark.parametrize("own", [False, True])
def test_setup(own: bool, made: SetUp, home: Path, tmp_path: Path) -> None:
    words = ["--model-repository", str(tmp_path / "mine")] if own else []
    done = runner.invoke(app.app, ["setup", DEFAULT_MODEL, *words])
    repository = tmp_path / "mine" if own else home / "model_repository"
    option = f" --model-repository {repository}" if own else ""
    assert done.exit_code == 0, done.output
    assert made.calls == [(DEFAULT_MODEL, home, repository, ExportRequest(), False)]
    assert made.fast == [False]
    assert done.output.splitlines() == [
        f"{DEFAULT_MODEL}: at work",
        f"{DEFAULT_MODEL} is ready: sam2, sam2_encoder in {repository}; `triton-sam serve{option}` serves it",
    ]


@pytest.mark.parametrize(("words", "variable"), [(["--fast"], None), ([], "1")])
def test_8_bits_are_asked_for(
    words: list[str], variable: str | None, made: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv("TRITON_SAM_FAST_ENCODER", variable)
        get_settings.cache_clear()
    done = runner.invoke(app.app, ["setup", DEFAULT_MODEL, *words])
    assert done.exit_code == 0, done.output
    assert made.fast == [True]


@pytest.mark.parametrize(
    "words",
    [
        ["sam2.1:large"],
        [DEFAULT_MODEL, "--image-size", "512"],
        ["--profile", "paintera"],
        ["vlm:shapes"],
        [VIDEO_MODEL],
    ],
)
def test_8_bits_are_for_ready_made_models(words: list[str], made: SetUp) -> None:
    done = runner.invoke(app.app, ["setup", *words, "--fast"])
    assert isinstance(done.exception, InvalidInput)
    assert "--fast" in str(done.exception)
    assert made.calls == []


def test_setup_passes_its_options_on(made: SetUp) -> None:
    words = "setup sam1:vit_b --checkpoint mine.pt --image-size 512 --device cuda --precision fp16 --engine torch"
    done = runner.invoke(app.app, words.split())
    assert done.exit_code == 0, done.output
    assert [call[3] for call in made.calls] == [ExportRequest(Path("mine.pt"), 512, "cuda", Precision.FP16)]
    assert made.engines == [EngineChoice.TORCH]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["sam2"], {FAMILY_DEFAULTS["sam2"]: True}),
        (["all"], dict.fromkeys(FAMILY_DEFAULTS.values(), True)),
        (["sam2:tiny", "sam1"], {"sam2:tiny": False, FAMILY_DEFAULTS["sam1"]: True}),
        ([FAMILY_DEFAULTS["sam2"]], {FAMILY_DEFAULTS["sam2"]: False}),
        ([FAMILY_DEFAULTS["sam2"], "sam2"], {FAMILY_DEFAULTS["sam2"]: True}),
        (["sam2:tiny", "sam2:tiny"], {"sam2:tiny": False}),
    ],
)
def test_a_familys_name_makes_its_model_the_default(names: list[str], expected: dict[str, bool], made: SetUp) -> None:
    done = runner.invoke(app.app, ["setup", *names])
    assert done.exit_code == 0, done.output
    assert [(call[0], call[4]) for call in made.calls] == list(expected.items())


def test_one_checkpoint_with_one_family(made: SetUp) -> None:
    done = runner.invoke(app.app, ["setup", "sam1", "--checkpoint", "mine.pt"])
    assert done.exit_code == 0, done.output
    assert [call[0] for call in made.calls] == [FAMILY_DEFAULTS["sam1"]]


def test_setup_checks_all_names_before_it_begins(made: SetUp) -> None:
    done = runner.invoke(app.app, ["setup", DEFAULT_MODEL, "sam9:huge"])
    assert isinstance(done.exception, InvalidInput)
    assert made.calls == []


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ([], None),
        (["sam1:vit_h"], ["sam1:vit_h"]),
        (["sam3", "sam2.1:large"], ["sam3:full", "sam2.1:large"]),
    ],
)
def test_setup_for_another_tool(
    names: list[str], ids: list[str] | None, made: SetUp, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def set_up_profile(
        profile: Any, wanted: Any, store: WeightStore, repository: Path, _progress: object, request: Any, say: Any
    ) -> list[str]:
        calls.append((profile, wanted, store.home, repository, request))
        say("at work")
        return ["sam1_encoder", "other"]

    monkeypatch.setattr(setup_models, "set_up_profile", set_up_profile)
    done = runner.invoke(app.app, ["setup", "--profile", "paintera", *names, "--precision", "fp16"])
    assert done.exit_code == 0, done.output
    request = ExportRequest(precision=Precision.FP16)
    assert calls == [(profiles.PAINTERA, ids, home, home / "model_repository", request)]
    assert made.calls == []
    assert done.output.splitlines() == [
        "paintera: at work",
        f"ready for Paintera 1.14: sam1_encoder, other in {home / 'model_repository'}",
    ]
