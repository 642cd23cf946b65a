"""Writes small checkpoints in every format, and checks that an export refuses a bad one cleanly."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.unit.export import official
from tests.unit.export.small import small_spec
from triton_sam.errors import InvalidInput
from triton_sam.export.run import ExportOptions, export_checkpoint
from triton_sam.models.specs import ModelSpec

SPEC = small_spec("sam1:vit_b")
State = dict[str, Tensor]


def official_state() -> State:
    """A small official checkpoint of SAM 1."""
    return official.tensors(official.sam1(SPEC.architecture, SPEC.side))


def refused(path: Path, spec: ModelSpec | str = SPEC) -> str:
    """The one sentence of an export's InvalidInput; what was there before is there after, and nothing else."""
    before = sorted(path.parent.rglob("*"))
    folder = path.parent / "out"
    with pytest.raises(InvalidInput) as caught:
        export_checkpoint(spec, path, folder, ExportOptions(image_size=256))
    assert sorted(path.parent.rglob("*")) == before
    said = str(caught.value)
    assert "\n" not in said
    assert "Traceback" not in said
    assert len(said) < 600
    return said


def assert_equal(found: State, wanted: State) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


Writer = Callable[[State, Path], Path]


def write_pt(state: State, folder: Path) -> Path:
    torch.save(state, folder / "flat.pt")
    return folder / "flat.pt"


def write_nested(state: State, folder: Path) -> Path:
    torch.save({"model": state, "epoch": 3}, folder / "nested.pt")
    return folder / "nested.pt"


def write_nested_twice(state: State, folder: Path) -> Path:
    torch.save({"state_dict": {"model": state}}, folder / "twice.pth")
    return folder / "twice.pth"


def write_old_format(state: State, folder: Path) -> Path:
    torch.save(state, folder / "old.pth", _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(folder / "old.pth")
    return folder / "old.pth"


def write_safetensors(state: State, folder: Path) -> Path:
    save_file(state, folder / "plain.safetensors")
    return folder / "plain.safetensors"


def write_folder(state: State, folder: Path, parts: int = 1) -> Path:
    target = folder / "hub"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"model_type": "sam"}))
    for part in range(parts):
        name = "model.safetensors" if parts == 1 else f"model-{part + 1:05}-of-{parts:05}.safetensors"
        save_file(dict(list(state.items())[part::parts]), target / name)
    return target


def write_sharded(state: State, folder: Path) -> Path:
    return write_folder(state, folder, parts=2)
