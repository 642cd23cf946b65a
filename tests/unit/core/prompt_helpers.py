"""Parses prompts for tests, and checks refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from triton_sam.core.prompts import (
    Prompt,
    PromptLimits,
    parse_prompt,
)
from triton_sam.errors import InvalidInput

SMALL = PromptLimits(max_points=5, max_objects=3, max_bytes=2000, mask_side=4)


def parse(document: Any, limits: PromptLimits | None = None) -> Prompt:
    return parse_prompt(json.dumps(document), limits)


def refused(document: Any, *words: str, limits: PromptLimits | None = None) -> str:
    """The message of a refusal, which is one line and has all the words."""
    with pytest.raises(InvalidInput) as caught:
        parse(document, limits)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message
