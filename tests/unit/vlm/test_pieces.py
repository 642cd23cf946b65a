"""Pieces of text: whatever the cuts, their sum is the whole answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from triton_sam.engines.vlm.pieces import Detokenizer, PieceMaker, StopFilter, TagFilter

_LETTERS = st.text(st.sampled_from("ab <>/\n\té漢😀\ufffd"), max_size=40)
_TEXTS = st.one_of(st.text(max_size=40), _LETTERS)


def decode(tokens: Sequence[int]) -> str:
    """Each token is a byte."""
    return bytes(tokens).decode("utf-8", "replace")


def pieces_of(data: bytes, stops: Sequence[str] = (), without_tags: bool = False) -> list[str]:
    maker = PieceMaker(decode, stops, without_tags=without_tags)
    pieces = []
    for byte in data:
        pieces.append(maker.add(byte))
        if maker.stopped:
            break
    return [*pieces, maker.end()]


@st.composite
def cut_texts(draw: st.DrawFn, texts: st.SearchStrategy[str] = _TEXTS) -> tuple[str, list[str]]:
    """A text, and the same in parts."""
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=10)))
    return text, [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


@given(_TEXTS)
def test_bytes_of_any_text(text: str) -> None:
    assert "".join(pieces_of(text.encode("utf-8", "replace"))) == text.encode("utf-8", "replace").decode().strip()


@given(st.binary(max_size=40))
@example("😀".encode()[:3])
@example(b"a\xff")
@example(b"\xff\xffa\xf0\x9f")
def test_bytes_that_are_no_text_or_end_within_a_character(data: bytes) -> None:
    assert "".join(pieces_of(data)) == decode(data).strip()


@given(st.binary(max_size=40))
def test_no_piece_has_half_a_character(data: bytes) -> None:
    """A replacement character is shown only where the whole has it, too."""
    detokenizer = Detokenizer(decode)
    shown = "".join(detokenizer.add(byte) for byte in data)
    assert decode(data).startswith(shown)
    assert shown + detokenizer.end() == decode(data)


def test_tokens_whose_text_depends_on_the_one_before() -> None:
    """As sentencepiece has it: the space before the first word of a decoded row is dropped."""
    words = ["▁a", "▁", "▁b", "c", "▁▁", "d"]

    def pieces_decode(tokens: Sequence[int]) -> str:
        text = "".join(words[token] for token in tokens).replace("▁", " ")
        return text.removeprefix(" ")

    maker = PieceMaker(pieces_decode, (), without_tags=False)
    assert "".join([*(maker.add(token) for token in range(6)), maker.end()]) == "a  bc  d"


def test_tokens_without_text_of_their_own_do_no_harm() -> None:
    maker = PieceMaker(lambda tokens: "".join("xy"[token] for token in tokens if token < 2), (), without_tags=False)
    assert [maker.add(token) for token in (9, 0, 9, 9, 1, 9)] == ["", "x", "", "", "y", ""]
    assert maker.end() == ""


# -- stops -----------------------------------------------------------------------------------------------------


@given(cut_texts(st.text(st.sampled_from("abc"), max_size=12)), st.text("abc", min_size=1, max_size=4))
def test_one_stop_word_whatever_the_cuts(cut: tuple[str, list[str]], stop: str) -> None:
    text, parts = cut
    stops = StopFilter([stop])
    shown = "".join(stops.add(part) for part in parts)
    assert shown + ("" if stops.found else stops.end()) == text.partition(stop)[0]
    assert stops.found == (stop in text)


@given(
    cut_texts(st.text(st.sampled_from("abc"), max_size=12)),
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3),
)
@example(("abc", ["ab", "c"]), ["abc", "b"])
def test_several_stop_words_give_the_same_whatever_the_cuts(cut: tuple[str, list[str]], words: list[str]) -> None:
    text, parts = cut

    def through(pieces: list[str]) -> str:
        stops = StopFilter(words)
        return "".join([*(stops.add(piece) for piece in pieces), "" if stops.found else stops.end()])

    assert through(parts) == through(list(text)) == through([text])


def test_a_beginning_of_a_stop_word_is_held_back_and_released() -> None:
    stops = StopFilter(["END", "STOP"])
    assert stops.add("a E") == "a "
    assert stops.add("N") == ""
    assert stops.add("N") == "ENN"
    assert stops.add("ST") == ""
    assert stops.end() == "ST"
    assert not stops.found


def test_nothing_comes_after_a_stop_word() -> None:
    stops = StopFilter(["."])
    assert stops.add("one. two") == "one"
    assert stops.found
    assert stops.add("more") == ""
    assert stops.end() == ""


@given(_TEXTS, st.text("ab <é😀", min_size=1, max_size=3))
def test_answers_end_before_their_stop_and_are_trimmed(text: str, stop: str) -> None:
    whole = text.encode("utf-8", "replace").decode()
    assert "".join(pieces_of(whole.encode(), [stop])) == whole.partition(stop)[0].strip()


# -- tags ------------------------------------------------------------------------------------------------------


def without_tags(parts: Sequence[str]) -> str:
    maker = PieceMaker(decode, (), without_tags=True)
    return "".join([*(maker.add_text(part) for part in parts), maker.end()])


@given(cut_texts(st.text(st.sampled_from("ab <>\n"), max_size=30)))
@example(("<a<b>", ["<a<b", ">"]))
@example(("<<a>b>", ["<<a", ">b>"]))
@example(("a<b", ["a<", "b"]))
@example(("a<\n>b", ["a<", "\n>b"]))
@example(("a<b\n<c>", ["a<b", "\n<c", ">"]))
def test_tags_are_taken_out_as_from_the_whole(cut: tuple[str, list[str]]) -> None:
    text, parts = cut
    assert without_tags(parts) == re.sub("<.*?>", "", text).strip()


@given(cut_texts(st.text(st.sampled_from("ab <>\n"), max_size=120)))
def test_long_texts_with_signs_that_are_no_tags_lose_nothing_but_tags(cut: tuple[str, list[str]]) -> None:
    """Whatever is taken for a tag: what is outside of any < and > is all there, in its order."""
    text, parts = cut
    kept = without_tags(parts)
    rest = iter(text)
    assert all(letter in rest for letter in kept)


@pytest.mark.parametrize("size", [38, 39, 40, 200])
def test_a_sign_that_is_not_closed_is_text(size: int) -> None:
    text = "1 <" + "x" * size
    assert without_tags(list(text)) == text


def test_an_open_tag_is_held_back_and_text_before_it_is_not() -> None:
    tags = TagFilter()
    assert tags.add("a ball<obj") == "a ball"
    assert tags.add("ect>.") == "."
    assert tags.end() == ""


def test_tags_go_before_stops_are_looked_for() -> None:
    pieces = pieces_of(b"a b<phrase>c d", ["bc"], without_tags=True)
    assert "".join(pieces) == "a"
