"""Memory for results that a worker lends to Triton processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from triton_sam.backend.workers.result_blocks import _BLOCK_BYTES, _BLOCKS, _LOANS, LentResults, ResultBlocks


@pytest.fixture
def blocks() -> Iterator[ResultBlocks]:
    made = ResultBlocks()
    yield made
    os.close(made.descriptor)


def lent_to(blocks: ResultBlocks, array: np.ndarray, borrower: object = "one") -> tuple[int, int]:  # type: ignore[type-arg]
    loan = blocks.lend(memoryview(array).cast("B"), borrower)
    assert loan is not None
    return loan


def test_a_result_is_read_where_it_was_written(blocks: ResultBlocks) -> None:
    taken = blocks.take(3 * 5)
    assert taken is not None
    results = taken.reshape(3, 5)
    results[:] = np.arange(15).reshape(3, 5)
    reader = LentResults(os.dup(blocks.descriptor))
    loans = [lent_to(blocks, row) for row in results]
    assert [bytes(reader.view(offset, 5)) for _, offset in loans] == [row.tobytes() for row in results]
    assert len({loan for loan, _ in loans}) == 3


def test_a_block_is_free_when_nobody_refers_to_it_and_all_is_back(blocks: ResultBlocks) -> None:
    reader = LentResults(os.dup(blocks.descriptor))
    taken = blocks.take(64)
    assert taken is not None
    rows = list(taken.reshape(8, 8)[2:4])  # views of views keep it, too
    del taken
    assert blocks.free == _BLOCKS - 1
    (first, _), (second, _) = (lent_to(blocks, row) for row in rows)
    rows.clear()
    assert blocks.free == _BLOCKS - 1
    reader.give_back(first)
    assert blocks.free == _BLOCKS - 1
    reader.give_back(second)
    assert blocks.free == _BLOCKS


def test_what_a_process_that_has_ended_borrowed_is_free_again(blocks: ResultBlocks) -> None:
    taken = blocks.take(8)
    assert taken is not None
    lent_to(blocks, taken[:4], "killed")
    lent_to(blocks, taken[4:], "alive")
    del taken
    blocks.forget("killed")
    assert blocks.free == _BLOCKS - 1
    blocks.forget("alive")
    assert blocks.free == _BLOCKS


def test_two_that_are_taken_do_not_overlap_and_the_last_one_is_refused(blocks: ResultBlocks) -> None:
    taken = [blocks.take(_BLOCK_BYTES) for _ in range(_BLOCKS)]
    for number in range(_BLOCKS):
        taken[number][:] = number  # type: ignore[index]
    assert all((taken[number] == number).all() for number in range(_BLOCKS))  # type: ignore[union-attr]
    assert blocks.take(1) is None
    taken.pop()
    assert blocks.take(1) is not None


def test_larger_results_and_those_elsewhere_are_not_for_it(blocks: ResultBlocks) -> None:
    assert blocks.take(_BLOCK_BYTES + 1) is None
    assert blocks.lend(memoryview(bytearray(10)), "one") is None


def test_only_so_many_results_of_a_block_are_lent(blocks: ResultBlocks) -> None:
    taken = blocks.take(_LOANS + 1)
    assert taken is not None
    for place in range(_LOANS):
        lent_to(blocks, taken[place : place + 1])
    assert blocks.lend(memoryview(taken[-1:]), "one") is None
