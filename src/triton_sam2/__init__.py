"""The package's older name: the public names of ``triton_sam``, and one warning that says so."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import triton_sam

if TYPE_CHECKING:
    from triton_sam import *  # noqa: F403

__all__ = triton_sam.__all__

warnings.warn(
    "the package triton_sam2 is now called triton_sam: write `import triton_sam` or `from triton_sam import ...`",
    DeprecationWarning,
    stacklevel=2,
)


def __getattr__(name: str) -> Any:
    if name in triton_sam.__all__:
        return getattr(triton_sam, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *triton_sam.__all__})
