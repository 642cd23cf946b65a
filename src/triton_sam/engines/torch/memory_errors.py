"""What a full GPU means to those who ask: try again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from triton_sam.errors import Unavailable

Result = TypeVar("Result")


def switch(use: Callable[[Path], object], folder: Path) -> None:
    """Uses a folder of compiled code; Unavailable if that does not fit into the GPU's memory now."""
    try:
        use(folder)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        raise Unavailable("the GPU has no memory left for compiled code") from None


class out_of_memory_as_unavailable:  # noqa: N801  (used like a function)
    """Turns an out-of-memory error into Unavailable, so that the client may retry."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
            raise Unavailable("the GPU is out of memory at the moment: try again, or send a smaller image") from None


def begun(start: Callable[[], Callable[[], Result]]) -> Callable[[], Result]:
    """Starts something, and returns the function for its result; both tell in this way that the GPU is full."""
    with out_of_memory_as_unavailable():
        result = start()

    def finish() -> Result:
        with out_of_memory_as_unavailable():
            return result()

    return finish
