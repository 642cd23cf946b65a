"""CUDA graphs of functions with fixed inputs, and the same interface without a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from triton_sam.errors import SetupError

log = logging.getLogger(__name__)
_WARM_UPS = 3


class Steps:
    """A function of fixed tensors, captured as a CUDA graph if there is a GPU.

    Fill its inputs before :meth:`run`, or with ``ahead``. Its outputs are valid until the next run of any steps that
    share its memory.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Tensor],
        stream: torch.cuda.Stream | None,
        pool: Any = None,
        ahead: Callable[[], object] | None = None,
        after: Callable[[Any], Any] | None = None,
    ) -> None:
        """
        Args:
            stream: on which it is captured, and on which it must run; None calls the function without a graph.
            pool: memory pool, shared by graphs that never run at the same time.
            ahead: copies from the host, captured with the function in the same launch.
            after: copies to the host, likewise; takes the function's outputs and returns those of a run.
        """
        self._function = function
        self._ahead = ahead
        self._after = after
        self._inputs = tuple(inputs)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.outputs: Any = None
        if stream is None:
            return
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):  # loads kernels, and lets libraries initialise before the capture
                self._called()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    self.outputs = self._called()
                self._graph = graph
            except RuntimeError as error:  # it synchronises with the host in the middle
                log.warning("a step runs without a CUDA graph, and slower: %s", str(error).partition("\n")[0])
            stream.synchronize()

    def instead_of(self, other: Steps) -> Steps:
        """Itself, to replace ``other``; SetupError if only that one could be captured."""
        if self._graph is None and other._graph is not None:
            raise SetupError("compiled code could not be captured as a CUDA graph")
        return self

    def run(self) -> Any:
        """Starts the function on the current stream and returns its output buffers."""
        if self._graph is None:
            self.outputs = self._called()
        else:
            self._graph.replay()
        return self.outputs

    def _called(self) -> Any:
        if self._ahead is not None:
            self._ahead()
        outputs = self._function(*self._inputs)
        return outputs if self._after is None else self._after(outputs)


def bucket(count: int, sizes: Sequence[int]) -> int:
    """The smallest of ``sizes``, ascending, that holds ``count``."""
    return next(size for size in sizes if size >= count)


def new_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """A new stream; lower ``priority`` numbers run first."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
    return stream
