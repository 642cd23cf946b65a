"""Words for ``triton-sam track``: what is looked for, in which frames, and which object is which word."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam.client.concepts import ConceptSegmentation, most_texts, not_sent
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.client.video_concepts import Find
from triton_sam.console import err
from triton_sam.core.concepts.request import SCORE_THRESHOLD, concept_text
from triton_sam.errors import InvalidInput, NotFound, ServerUnreachable, Unsupported
from triton_sam.files import whole_file
from triton_sam.video.clip import ClipFrame
from triton_sam.video.identities import FoundInstance


@dataclass(frozen=True, slots=True)
class TrackWords:
    """What is looked for.

    Attributes:
        texts: one for each concept.
        frame: in which is looked first.
        every: frames from one look to the next; None looks once.
        model: of the segmenter that takes text; empty until it is known.
    """

    texts: tuple[str, ...]
    frame: int = 0
    every: int | None = None
    score_threshold: float = SCORE_THRESHOLD
    model: str = ""

    def as_json(self) -> dict[str, Any]:
        """For comparing two runs."""
        given: dict[str, Any] = {"texts": list(self.texts), "frame": self.frame, "every": self.every}
        return given | {"score_threshold": self.score_threshold, "model": self.model}

    def name_of(self, concept: int) -> str:
        return self.texts[concept]

    def counted(self, concepts: Iterable[int]) -> str:
        """``3 fish, 1 coral``: of each word as many as there are objects."""
        listed = list(concepts)
        return ", ".join(f"{listed.count(number)} {text}" for number, text in enumerate(self.texts))


def track_words(
    texts: Sequence[str], frame: int, every: int | None, score_threshold: float | None, *, beside: bool
) -> TrackWords | None:
    """The words of the options; None if there are none.

    Args:
        beside: whether there are points, boxes or masks too.
    """
    if not texts:
        if every is not None or score_threshold is not None or frame:
            raise InvalidInput("--every, --text-frame and --score-threshold are for words: add --text")
        return None
    if beside:
        raise InvalidInput("--text finds objects by itself: leave --point, --box and --mask out")
    threshold = SCORE_THRESHOLD if score_threshold is None else score_threshold
    return TrackWords(tuple(dict.fromkeys(concept_text(text) for text in texts)), frame, every, threshold)


def read_concepts(folder: Path, objects: Iterable[int]) -> dict[int, int]:
    """Object -> the number of its concept, of the objects of a run that goes on."""
    path = folder / "concepts.json"
    try:
        known = {int(name): int(concept) for name, concept in json.loads(path.read_bytes()).items()}
        return {name: known[name] for name in objects}
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        raise InvalidInput(f"{path} is damaged: delete its folder to begin again") from None


def write_concepts(folder: Path, concepts: dict[int, int]) -> None:
    """What :func:`read_concepts` reads."""
    with whole_file(folder / "concepts.json") as file:
        file.write(json.dumps(concepts).encode())


@contextmanager
def word_finder(
    urls: Sequence[str] | None, words: TrackWords, size: tuple[int, int], token: str | None, timeout: float
) -> Iterator[Find]:
    """A function that finds instances of the words in a frame; of several servers the first one that can does.

    Args:
        size: (width, height) of the frames.
    """
    with ExitStack() as stack:
        clients: list[SAM2TritonClient] = [
            stack.enter_context(SAM2TritonClient(url, words.model, token=token, timeout=timeout))
            for url in urls or (None,)
        ]
        finder = _Finder(words, most_texts(size))

        def find(frame: ClipFrame) -> list[FoundInstance]:
            for client in clients[:-1]:
                try:
                    return finder.ask(client, frame)
                except (ServerUnreachable, NotFound, Unsupported):  # only some of them have the model, or its words
                    continue
            return finder.ask(clients[-1], frame)

        yield find


class _Finder:
    """Asks a server for the instances in a frame."""

    def __init__(self, words: TrackWords, most: int) -> None:
        """
        Args:
            most: texts in one request.
        """
        self._words, self._most = words, most
        self._told_of_missing = False

    def ask(self, client: SAM2TritonClient, frame: ClipFrame) -> list[FoundInstance]:
        """Instances by text, then by falling score."""
        client.set_image(frame.data)
        found: list[FoundInstance] = []
        for first in range(0, len(self._words.texts), self._most):
            texts = list(self._words.texts[first : first + self._most])
            answer: ConceptSegmentation = client.segment(
                text=texts, score_threshold=self._words.score_threshold, format="rle"
            )
            found += [
                FoundInstance(first + entry["concept"], entry["score"], entry["data"])
                for entry in answer.result["masks"]
            ]
            self._warn_of_missing(answer, frame)
        return found

    def _warn_of_missing(self, answer: ConceptSegmentation, frame: ClipFrame) -> None:
        """Warns once of instances that a server has found and not sent."""
        missing = None if self._told_of_missing else not_sent(answer.result)
        if missing is not None:
            self._told_of_missing = True
            err.print(f"frame {frame.index}: the server {missing}; so it may be in other frames")
