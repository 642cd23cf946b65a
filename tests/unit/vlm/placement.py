"""Where the small engines run."""

from __future__ import annotations

from triton_sam.engines.vlm.loading import Placement

ON_CPU = Placement("cpu", "float32", 1)
