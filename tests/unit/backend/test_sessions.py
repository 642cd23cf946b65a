from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triton_sam.backend.sessions import SessionBook


@given(st.permutations(range(1, 9)), st.integers(1, 9))
def test_of_hovers_in_any_order_only_growing_numbers_get_in(order: list[int], floor: int) -> None:
    book = SessionBook()
    book.cancel("s", before=floor)
    let_in = [number for number in order if not book.is_late("s", number, latest_wins=True)]
    assert let_in == sorted(let_in)
    assert all(number >= floor for number in let_in)
    if floor <= 8:
        assert let_in[-1] == 8, "the newest always gets in"


def test_a_floor_never_sinks() -> None:
    book = SessionBook()
    book.cancel("s", before=5)
    book.cancel("s", before=3)
    assert book.is_cancelled("s", 4)
    assert not book.is_cancelled("s", 5)
    assert not book.is_cancelled("other", 1)
    assert not book.is_cancelled("s", None)


def test_it_stays_small() -> None:
    book = SessionBook(capacity=3)
    for number in range(10):
        book.cancel(f"s{number}", before=2)
        for single in range(1000):
            book.cancel(f"s{number}", only=single)
    assert len(book) == 3
    assert not book.is_cancelled("s0", 1), "forgotten"
    assert book.is_cancelled("s9", 999)
    assert not book.is_late("s1", None, latest_wins=True)
