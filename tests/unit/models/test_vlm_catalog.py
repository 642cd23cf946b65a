from __future__ import annotations

import json
import math
import re
from fnmatch import fnmatch

import pytest

from triton_sam.errors import InvalidInput
from triton_sam.models.catalog import CATALOG
from triton_sam.models.vlm_catalog import VLM_CATALOG, get_vlm, is_vlm
from triton_sam.models.vlm_specs import Adapter, VlmSpec
from triton_sam.models.vlm_weights import bundled_folder
from triton_sam.repository.configs import raw_names
from triton_sam.repository.profiles import PROFILES

ROWS = list(VLM_CATALOG.values())
rows = pytest.mark.parametrize("spec", ROWS, ids=lambda spec: spec.name)


def test_the_models() -> None:
    assert list(VLM_CATALOG) == ["vlm:moondream2", "vlm:kosmos2", "vlm:llava", "vlm:shapes"]
    assert all(key == spec.id for key, spec in VLM_CATALOG.items())


@rows
def test_a_row(spec: VlmSpec) -> None:
    assert re.fullmatch(r"vlm:[a-z0-9]+", spec.id)
    assert (spec.name, spec.stream_name) == (spec.id[4:], f"{spec.id[4:]}_stream")
    assert spec.size > 1_000_000
    assert spec.parameters > 1
    assert spec.title
    assert spec.licence
    assert spec.best_for


@rows
def test_a_row_branches_on_data(spec: VlmSpec) -> None:
    assert spec.grounds == (spec.adapter is Adapter.GROUNDED)
    assert spec.remote_code == (spec.adapter is Adapter.OWN_CODE)


@rows
def test_a_source_is_pinned_and_has_no_pickles(spec: VlmSpec) -> None:
    if spec.source is None:
        assert (bundled_folder(spec) / "config.json").is_file()
        return
    for source in (spec.source, *spec.parts):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", source.repo)
        assert re.fullmatch(r"[0-9a-f]{40}", source.revision)
        pickles = ("pytorch_model.bin", "model.pt", "model.pth", "weights.pkl")
        assert not any(fnmatch(name, pattern) for name in pickles for pattern in source.files)
    assert {"config.json"} <= set(spec.source.files)
    assert any(fnmatch("model.safetensors", pattern) for pattern in spec.source.files)
    assert ("*.py" in spec.source.files) == spec.remote_code, "code is downloaded only where it must run"


def test_the_bundled_checkpoint_is_as_large_as_its_row_says() -> None:
    (spec,) = [spec for spec in ROWS if spec.source is None]
    with (bundled_folder(spec) / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    numbers = sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    assert round(numbers / 1e6, 1) == spec.parameters
    size = sum(path.stat().st_size for path in bundled_folder(spec).iterdir())
    assert abs(size - spec.size) < 0.01 * size


def test_no_name_is_another_models() -> None:
    names = [name for spec in ROWS for name in (spec.name, spec.stream_name)]
    segmenters = {name for spec in CATALOG.values() for name in (spec.family, spec.variant_name)}
    others = segmenters | {raw for name in segmenters for raw in raw_names(name)}
    others |= {model.name for profile in PROFILES.values() for model in profile.models}
    assert len(set(names)) == len(names)
    assert not set(names) & others


@pytest.mark.parametrize("name", ["vlm:llava", "llava"])
def test_a_model_by_its_id_and_its_name(name: str) -> None:
    assert get_vlm(name) is VLM_CATALOG["vlm:llava"]
    assert is_vlm(name)


@pytest.mark.parametrize("name", ["vlm", "vlm:", "vlm:gpt", "", "llava_stream"])
def test_an_unknown_model_lists_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        get_vlm(name)
    assert repr(name) in str(caught.value)
    assert all(model_id in str(caught.value) for model_id in VLM_CATALOG)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("vlm", True), ("vlm:gpt", True), ("kosmos2", True), ("sam2", False), ("sam2:tiny", False), ("all", False)],
)
def test_is_vlm(name: str, expected: bool) -> None:
    assert is_vlm(name) is expected
