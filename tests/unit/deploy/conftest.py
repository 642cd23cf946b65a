"""Fixtures of the chart's tests: the manifests of each example."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.deploy.helm_render import EXAMPLES, Manifest, render


@pytest.fixture(params=sorted(EXAMPLES))
def example(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def manifests(example: str, tmp_path: Path) -> list[Manifest]:
    return render(tmp_path, "-f", str(EXAMPLES[example]))
