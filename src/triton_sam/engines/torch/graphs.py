"""Functions with fixed inputs that run as one launch: CUDA graphs, and the same without a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)
_WARM_UPS = 3


class Steps:
    """A function of tensors that stay in place, captured as a CUDA graph where there is a GPU.

    Its inputs are filled before :meth:`run`; what it returns stays valid until the next run of any steps that share
    its memory.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Tensor],
        stream: torch.cuda.Stream | None,
        pool: Any = None,
    ) -> None:
        """
        Args:
            stream: on which it is captured, and on which it must run; None runs the function as it is.
            pool: of graphs that never run at the same time, which may share memory.
        """
        self._function = function
        self._inputs = tuple(inputs)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.outputs: Any = None
        if stream is None:
            return
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):  # compiles, and lets libraries choose and allocate before the capture
                function(*self._inputs)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    self.outputs = function(*self._inputs)
                self._graph = graph
            except RuntimeError as error:  # it asks the host for something in the middle
                log.warning("a step runs without a CUDA graph, and slower: %s", str(error).partition("\n")[0])
            stream.synchronize()

    def run(self) -> Any:
        """Starts the steps on the current stream, and returns where their results will be."""
        if self._graph is None:
            self.outputs = self._function(*self._inputs)
        else:
            self._graph.replay()
        return self.outputs


def bucket(count: int, sizes: Sequence[int]) -> int:
    """The smallest of ``sizes``, which rise, that holds ``count``."""
    return next(size for size in sizes if size >= count)


def new_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """A stream of its own; those of lower ``priority`` numbers go first."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
    return stream
