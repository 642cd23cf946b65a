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

    Its inputs are filled before :meth:`run`, or by what goes ahead; what it returns stays valid until the next run of
    any steps that share its memory.
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
            stream: on which it is captured, and on which it must run; None runs the function as it is.
            pool: of graphs that never run at the same time, which may share memory.
            ahead: copies from the host, which are captured with the function: one launch does for all.
            after: copies to the host, likewise; what it makes of the function's outputs is what a run returns.
        """
        self._function = function
        self._ahead = ahead
        self._after = after
        self._inputs = tuple(inputs)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.outputs: Any = None
        if stream is None:
            return
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):  # compiles, and lets libraries choose and allocate before the capture
                self._called()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    self.outputs = self._called()
                self._graph = graph
            except RuntimeError as error:  # it asks the host for something in the middle
                log.warning("a step runs without a CUDA graph, and slower: %s", str(error).partition("\n")[0])
            stream.synchronize()

    def run(self) -> Any:
        """Starts the steps on the current stream, and returns where their results will be."""
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


class StepMaker:
    """Makes steps of one model, compiled where that is wanted and works."""

    def __init__(self, name: str, mode: str | None = None) -> None:
        """
        Args:
            name: of the model, for the log.
            mode: torch.compile's; None compiles nothing.
        """
        self._name = name
        self._mode = "max-autotune-no-cudagraphs" if mode == "max-autotune" else mode

    def make(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Tensor],
        stream: torch.cuda.Stream | None,
        pool: Any = None,
        ahead: Callable[[], object] | None = None,
        after: Callable[[Any], Any] | None = None,
    ) -> Steps:
        """See :class:`Steps`. The function alone is compiled: copies from and to the host are not the compiler's."""
        with torch.inference_mode():
            if self._mode is not None:
                try:
                    compiled = torch.compile(function, mode=self._mode, dynamic=False, fullgraph=True)
                    steps = Steps(compiled, inputs, stream, pool, ahead, after)
                    if stream is None:  # nothing was run yet, so nothing compiled
                        steps.run()
                    return steps
                except torch.cuda.OutOfMemoryError:
                    raise
                except Exception as error:  # no compiler on this machine, or a torch that does not know this network
                    log.warning("%s runs uncompiled, and slower", self._name, exc_info=error)
                    self._mode = None  # it would fail for other sizes too
            return Steps(function, inputs, stream, pool, ahead, after)


def bucket(count: int, sizes: Sequence[int]) -> int:
    """The smallest of ``sizes``, which rise, that holds ``count``."""
    return next(size for size in sizes if size >= count)


def new_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """A stream of its own; those of lower ``priority`` numbers go first."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
    return stream
