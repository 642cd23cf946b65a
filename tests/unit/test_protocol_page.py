"""docs/reference/protocol.md names everything that a segmenter takes and returns."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from triton_sam import errors
from triton_sam.backend import requests
from triton_sam.core.everything.options import EVERYTHING_FORMATS
from triton_sam.core.masks import FORMATS
from triton_sam.core.prompts import prompt_from_mapping
from triton_sam.core.video.request import Do
from triton_sam.errors import InvalidInput, TritonSamError
from triton_sam.models.catalog import get_spec
from triton_sam.repository.configs import segmenter_config

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reference" / "protocol.md").read_text()
#: Words in backquotes, and in tables the first ones of a row.
NAMED = {word for quoted in re.findall(r"`([^`\n]+)`", TEXT) for word in re.findall(r"[\w-]+", quoted)}


def test_tensors() -> None:
    config = segmenter_config(get_spec("sam2:tiny_video"), "sam2")
    for tensor in (*config.input, *config.output):
        kind = {"TYPE_STRING": "BYTES"}.get(name := tensor_type(tensor), name.removeprefix("TYPE_"))
        rows = [row for row in TEXT.splitlines() if row.startswith(f"| `{tensor.name}` | ")]
        assert rows, tensor.name
        assert any(kind in row or "as the input" in row for row in rows), f"{tensor.name} is {kind}"


def tensor_type(tensor: object) -> str:
    """As the config spells it: TYPE_FP32."""
    match = re.search(r"data_type: (\w+)", str(tensor))
    assert match is not None
    return match[1]


def test_fields_of_prompts() -> None:
    with pytest.raises(InvalidInput, match="known are ") as refused:
        prompt_from_mapping({"nothing": 1})
    known = str(refused.value).partition("known are ")[2].split(", ")
    assert "points" in known
    assert not set(known) - NAMED
    assert not {*FORMATS, *EVERYTHING_FORMATS, *(do.value for do in Do)} - NAMED


def test_parameters() -> None:
    source = inspect.getsource(requests) + (ROOT / "src/triton_sam/backend/segmenter.py").read_text()
    known = set(re.findall(r'parameters(?:, |\.get\()"(\w+)"', source))
    assert {"session_id", "cancel", "since", "run"} <= known
    assert not known - NAMED


def test_markers() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, TritonSamError)]
    markers = {cls.marker for cls in classes} - {None}
    assert markers == set(re.findall(r"`\[([\w-]+)\]`", TEXT))
