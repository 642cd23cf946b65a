from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from triton_sam.catalog import CATALOG, DEFAULT_MODEL, HttpSource, ModelSpec, NpmSource, Role, get_spec
from triton_sam.errors import InvalidInput

SPECS = list(CATALOG.values())
each_spec = pytest.mark.parametrize("spec", SPECS, ids=[spec.id for spec in SPECS])


def test_the_default_model_is_in_the_catalogue() -> None:
    assert get_spec(DEFAULT_MODEL).id == DEFAULT_MODEL


@pytest.mark.parametrize("model_id", ["sam9:huge", "", "SAM2:TINY", "sam2"])
def test_an_unknown_model_lists_the_known_ones(model_id: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        get_spec(model_id)
    assert repr(model_id) in str(caught.value)
    for known in CATALOG:
        assert known in str(caught.value)


@each_spec
def test_names(spec: ModelSpec) -> None:
    assert CATALOG[spec.id] is spec
    family, separator, variant = spec.id.partition(":")
    assert separator
    assert variant
    assert family == spec.family
    assert re.fullmatch(r"[a-z0-9_]+", spec.family), "a family names folders and Triton models"
    assert spec.title
    assert spec.licence


@each_spec
def test_each_role_has_one_file_with_a_checksum_and_a_source(spec: ModelSpec) -> None:
    assert sorted(file.role for file in spec.files) == sorted(Role)
    assert len({file.name for file in spec.files}) == len(spec.files)
    for file in spec.files:
        assert spec.file(file.role) is file
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert file.size > 0
        assert file.sources
        assert "/" not in file.name
    assert spec.size == sum(file.size for file in spec.files)


@each_spec
def test_sources_are_pinned(spec: ModelSpec) -> None:
    for file in spec.files:
        for source in file.sources:
            if isinstance(source, HttpSource):
                assert urlsplit(source.url).scheme == "https"
            else:
                assert isinstance(source, NpmSource)
                assert re.fullmatch(r"\d+\.\d+\.\d+", source.version)
                assert source.member.endswith(file.name)


@each_spec
def test_the_graphs_fit_together(spec: ModelSpec) -> None:
    outputs = dict(spec.encoder.outputs)
    assert len(outputs) == len(spec.encoder.outputs)
    assert outputs[spec.encoder.embedding] == (1, 256, 64, 64)
    assert all(shape[0] == 1 and len(shape) == 4 for shape in outputs.values())
    assert (spec.encoder.mean is None) == (spec.encoder.std is None)
    if spec.encoder.std is not None:
        assert min(spec.encoder.std) > 0
    own = {spec.decoder.points, spec.decoder.labels, spec.decoder.mask, spec.decoder.mask_flag}
    assert len(own) == 4
    assert not own & set(outputs)
    assert spec.side % spec.decoder.mask_side == 0
    assert spec.decoder.masks_per_prompt >= 1


def test_roles_read_as_the_words_in_model_names() -> None:
    assert [role.value for role in Role] == ["encoder", "decoder"]
