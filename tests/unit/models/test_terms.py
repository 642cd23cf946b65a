"""Before gated weights are downloaded their licence is told, and a tokenizer comes with them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.unit.helpers import FileServer, model_file, model_spec
from tests.unit.models.weights_helpers import CONTENT, DECODER
from triton_sam.errors import WeightsError
from triton_sam.models.catalog import CATALOG, get_spec
from triton_sam.models.specs import HttpSource, ModelSpec, Role
from triton_sam.models.weights import WeightStore

TERMS = "https://example.com/LICENSE"


@pytest.fixture
def spec(server: FileServer) -> ModelSpec:
    """With terms of its own, a checkpoint and a tokenizer."""
    checkpoint = model_file(
        CONTENT, HttpSource(server.add("/model.pt", CONTENT)), name="model.pt", role=Role.CHECKPOINT
    )
    tokenizer = model_file(
        DECODER, HttpSource(server.add("/tokenizer.json", DECODER)), name="tokenizer.json", role=Role.TOKENIZER
    )
    return dataclasses.replace(
        model_spec(), checkpoints=(checkpoint,), tokenizer=tokenizer, licence="Strange License", terms=TERMS
    )


def test_terms_are_told_once_and_before_the_download(
    spec: ModelSpec, server: FileServer, store: WeightStore, caplog: pytest.LogCaptureFixture
) -> None:
    asked_when_told: list[int] = []
    caplog.handler.addFilter(lambda _: asked_when_told.append(len(server.requests)) is None)
    store.pull_checkpoint(spec)
    store.pull_tokenizer(spec)
    told = f"{spec.id} is under the Strange License, which you accept by the download: {TERMS}"
    assert [record.getMessage() for record in caplog.records] == [told]
    assert asked_when_told == [0]
    assert len(server.requests) == 2


def test_who_has_the_files_is_not_told_again(
    spec: ModelSpec, store: WeightStore, caplog: pytest.LogCaptureFixture
) -> None:
    path = store.pull_checkpoint(spec)
    caplog.clear()
    assert WeightStore(store.home).pull_checkpoint(spec) == path
    assert caplog.records == []


def test_the_tokenizer_is_kept_and_removed_with_its_model(spec: ModelSpec, store: WeightStore) -> None:
    path = store.pull_tokenizer(spec)
    assert path.read_bytes() == DECODER
    assert store.remove(spec) == len(DECODER)
    assert not path.exists()


def test_a_model_without_words_has_no_tokenizer(store: WeightStore) -> None:
    with pytest.raises(WeightsError, match="sam2:tiny has no tokenizer in the catalogue"):
        store.pull_tokenizer(get_spec("sam2:tiny"))


def test_terms_are_told_of_every_licence_that_is_not_open() -> None:
    for spec in CATALOG.values():
        assert bool(spec.terms) == (spec.licence != "Apache-2.0")


def test_what_is_part_of_this_package_is_installed_everywhere(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    assert store.is_installed(get_spec("sam3:shapes"))
    assert store.pull(get_spec("sam3:shapes")) == {}
    assert list(tmp_path.iterdir()) == []
