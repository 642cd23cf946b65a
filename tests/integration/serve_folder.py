"""Serves model repositories that a test may change in the meantime."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton_sam.repository.segmenters import find_segmenters
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

#: An unknown protobuf field, which readers skip: other bytes, the same graph.
UNKNOWN_FIELD = b"\xc0\x3e\x01"


@contextlib.contextmanager
def serve_folder(repository: Path, home: Path, **settings: str) -> Iterator[RunningServer]:
    """Serves all segmenters of a repository on free ports, with the given settings."""
    variables = {f"TRITON_SAM_{name.upper()}": value for name, value in settings.items()}
    segmenters = find_segmenters(repository)
    with serving(
        ServingOptions(repository, segmenters, Settings(home=home), ports=Ports(0, 0, 0, 0), environment=variables)
    ) as running:
        yield running


def same_graph_other_bytes(source: Path, target: Path) -> Path:
    """Writes a copy of a graph file with other bytes, for a new version of a model."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes() + UNKNOWN_FIELD)
    return target


def health(running: RunningServer) -> dict[str, Any]:
    """The service's response to /health, which must be 200."""
    with urllib.request.urlopen(f"{running.urls['service']}/health", timeout=10) as response:
        document: dict[str, Any] = json.loads(response.read())
    return document
