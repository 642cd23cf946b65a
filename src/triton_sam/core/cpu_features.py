"""Detects 8-bit dot products of this CPU, and the ONNX Runtime option that depends on them."""

from __future__ import annotations

import functools
from pathlib import Path

_PRECISION_KEY = "session.x64quantprecision"
_CPU_FACTS = Path("/proc/cpuinfo")
_DOT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "asimddp"})


def session_entry(facts: Path = _CPU_FACTS) -> tuple[str, str]:
    """The session option (key, value) for a graph with 8-bit matrix products.

    CPUs without 8-bit dot products add pairs in 16 bits, which overflows: they need the slower, exact kernels. On other
    CPUs the option must be off, or most of the speed-up would be lost.
    """
    return _PRECISION_KEY, "0" if has_dot_products(facts) else "1"


@functools.cache
def has_dot_products(facts: Path = _CPU_FACTS) -> bool:
    """Whether this CPU has 8-bit dot products: VNNI (AMX implies it), or ARM's."""
    try:
        lines = facts.read_text(errors="replace").splitlines()
    except OSError:
        return False  # not Linux: the slow kernels are right everywhere
    found = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return any(flag in _DOT_PRODUCTS for flags in found for flag in flags)
