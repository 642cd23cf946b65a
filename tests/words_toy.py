"""What needs the weights of ``sam3:shapes``: they are part of a version once they are good enough."""

from __future__ import annotations

import pytest

from triton_sam.models.bundled import is_bundled

HAS_WEIGHTS = is_bundled("concepts/network.safetensors")
needs_words_toy = pytest.mark.skipif(not HAS_WEIGHTS, reason="sam3:shapes has no weights in this version")
