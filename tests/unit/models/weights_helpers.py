"""Contents and looks into a store, for the tests of downloads."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import numpy as np

from triton_sam.models.weights import WeightStore

CONTENT = np.random.default_rng(2).bytes(3_000_000)
HALF = len(CONTENT) // 2
DECODER = b"the decoder"

DiskUsage = namedtuple("DiskUsage", "total used free")


def blobs(store: WeightStore) -> list[Path]:
    return sorted(store.blobs.iterdir()) if store.blobs.exists() else []


def working_files(store: WeightStore) -> list[str]:
    return sorted(path.name for path in (store.home / "work").rglob("*") if path.is_file())
