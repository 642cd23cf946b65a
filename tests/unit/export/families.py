"""The kinds of networks under test, and those of the tests for every commit."""

from __future__ import annotations

from typing import Any

import pytest

#: One model of each kind of network.
FAMILIES = ("sam1:vit_b", "sam1:mobile", "sam2.1:tiny", "sam3:full")
WITH_FEATURES = ("sam2.1:tiny", "sam3:full")
WITHOUT_FEATURES = ("sam1:vit_b", "sam1:mobile")
#: The smallest one without fine features and the smallest one with them.
FOR_EVERY_COMMIT = frozenset({"sam1:vit_b", "sam2.1:tiny"})


def one_or_each(model_ids: tuple[str, ...]) -> list[Any]:
    """pytest parameters: the ids of FOR_EVERY_COMMIT, and the others marked for the part ``exports``."""
    others = pytest.mark.part("exports")
    return [pytest.param(each, marks=() if each in FOR_EVERY_COMMIT else others) for each in model_ids]


EACH_FAMILY = one_or_each(FAMILIES)
