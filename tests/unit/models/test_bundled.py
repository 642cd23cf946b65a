"""What is part of the package is in the wheel, and in the container's image."""

from __future__ import annotations

from pathlib import Path

import pytest

from triton_sam.errors import SetupError
from triton_sam.models import bundled
from triton_sam.models.bundled import bundled_path
from triton_sam.models.catalog import VIDEO_MODEL, get_spec
from triton_sam.models.catalog_sam3 import SHAPES_MODEL

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("model_id", [VIDEO_MODEL, SHAPES_MODEL])
def test_the_parts_of_a_model_are_here(model_id: str) -> None:
    assembly = get_spec(model_id).assembly
    assert assembly is not None
    weights, recipes = bundled_path(assembly.weights), bundled_path(assembly.recipes)
    assert weights.is_file()
    assert recipes.is_dir()
    assert 10e6 < weights.stat().st_size < 20e6
    assert not assembly.tokenizer or bundled_path(assembly.tokenizer).is_file()


@pytest.mark.parametrize(("name", "folder"), bundled._FOLDERS.items())
def test_they_go_into_the_wheel_and_the_image(name: str, folder: str) -> None:
    assert f'"{folder}" = "triton_sam/bundled/{name}"' in (ROOT / "pyproject.toml").read_text()
    assert f"!{folder}\n" in (ROOT / ".dockerignore").read_text()
    assert f"COPY {folder} {folder}\n" in (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("wheel", [True, False])
def test_where_they_are(wheel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "triton_sam"
    monkeypatch.setattr(bundled, "_PACKAGE", package)
    with pytest.raises(SetupError, match="reinstall triton-sam"):
        bundled_path("memory/memory.safetensors")
    training = tmp_path / "training" / "memory"
    file = package / "bundled/memory/memory.safetensors" if wheel else training / "model" / "memory.safetensors"
    recipes = package / "bundled/memory/recipes" if wheel else training / "recipes"
    recipes.mkdir(parents=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"weights")
    assert bundled_path("memory/memory.safetensors") == file
    assert bundled_path("memory/recipes") == recipes
