"""Torch with one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def one_thread() -> Iterator[None]:
    """Small networks are slower on several threads, and much slower beside other tests; nothing where there is no
    torch."""
    if find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
