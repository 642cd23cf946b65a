"""Turns tokens into pieces of text that can be streamed, and whose concatenation is the answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_TAG = re.compile("<.*?>")
#: Longer than any tag of a model; a "<" that is not closed until then is text.
_LONGEST_TAG = 40
_UNFINISHED = "\ufffd"


class Detokenizer:
    """Decodes tokens one by one. A character whose bytes are incomplete is held back."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        #: Text up to ``_read`` was returned; decoding starts at ``_begin``, as a token's text depends on the previous.
        self._begin = self._read = 0

    def add(self, token: int) -> str:
        """The text that this token completes."""
        self._tokens.append(token)
        return self._advance(final=False)

    def end(self) -> str:
        """The text that was held back."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        known = self._decode(self._tokens[self._begin : self._read])
        text = self._decode(self._tokens[self._begin :])
        if len(text) <= len(known) or (text.endswith(_UNFINISHED) and not final):
            return ""
        self._begin, self._read = self._read, len(self._tokens)
        return text[len(known) :]


class TagFilter:
    """Removes ``<...>``, however the text is split into pieces."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, text: str) -> str:
        text = _TAG.sub("", self._held + text)
        # What may still become a tag starts at the first "<" of the last line, if that is not too far back.
        begin = max(text.rfind("\n") + 1, len(text) - _LONGEST_TAG)
        cut = text.find("<", begin)
        cut = len(text) if cut < 0 else cut
        self._held = text[cut:]
        return text[:cut]

    def end(self) -> str:
        held, self._held = self._held, ""
        return held


class StopFilter:
    """Ends the text before the first stop word."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        if self.found:
            return ""
        text = self._held + text
        # The word that ends first, however the text is split; of those that end together the longest.
        places = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)[1]]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``stop``."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


class Trim:
    """Strips white space at both ends of the whole text."""

    def __init__(self) -> None:
        self._held = ""
        self._began = False

    def add(self, text: str) -> str:
        text = self._held + text
        if not self._began:
            text = text.lstrip()
        kept = text.rstrip()
        self._held = text[len(kept) :]
        self._began = self._began or bool(kept)
        return kept


class PieceMaker:
    """Turns the tokens of one answer into the pieces that its listener gets."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str], *, without_tags: bool) -> None:
        self._detokenizer = Detokenizer(decode)
        self._tags = TagFilter() if without_tags else None
        self._stops = StopFilter(stops)
        self._trim = Trim()

    @property
    def stopped(self) -> bool:
        """Whether a stop word was found."""
        return self._stops.found

    def add(self, token: int) -> str:
        """The piece that a token completes, often empty."""
        return self.add_text(self._detokenizer.add(token))

    def add_text(self, text: str) -> str:
        """As :meth:`add`, for a model that returns text."""
        if self._tags is not None:
            text = self._tags.add(text)
        return self._trim.add(self._stops.add(text))

    def end(self) -> str:
        """The last piece."""
        text = self._detokenizer.end()
        if self._tags is not None:
            text = self._tags.add(text) + self._tags.end()
        text = self._stops.add(text)
        return self._trim.add(text + ("" if self._stops.found else self._stops.end()))
