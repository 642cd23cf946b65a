"""Begins the next chunks before the last one is finished, so that a device goes from one to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from triton_sam.core.everything.candidates import Candidates
from triton_sam.core.everything.driver import Find
from triton_sam.core.everything.grids import Points

#: [P,2] xy in original pixels of the whole image -> waits for what is found there. It is called once.
BeginFind = Callable[[Points], Callable[[], Candidates]]


def find_ahead(begin: BeginFind, chunks: Sequence[Points], depth: int = 2) -> Find:
    """:data:`~triton_sam.core.everything.driver.Find` for a crop whose chunks are known.

    Args:
        begin: starts a chunk without waiting.
        chunks: the points of each, as :func:`~triton_sam.core.everything.grids.plan` gives them for the crop; the
            result must be called with these, in order.
        depth: chunks that are under way at a time.
    """
    left = iter(chunks)
    under_way: deque[Callable[[], Candidates]] = deque()

    def find(points: Points) -> Iterator[Candidates]:
        while len(under_way) < depth and (following := next(left, None)) is not None:
            under_way.append(begin(following))
        yield under_way.popleft()()

    return find
