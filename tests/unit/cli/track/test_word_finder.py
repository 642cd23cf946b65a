"""How ``triton-sam track --text`` asks its servers for what words name in a frame."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit import concept_messages as concepts
from tests.unit.client.memory_server import Outputs
from tests.unit.client.test_concepts import Server
from triton_sam.cli import track_words
from triton_sam.cli.track_words import TrackWords, word_finder
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.client.wire import Call, text_of
from triton_sam.core.rle import from_rle
from triton_sam.errors import InvalidInput, NotFound, ServerUnreachable, TritonSamError, Unsupported
from triton_sam.settings import get_settings
from triton_sam.video.clip import ClipFrame
from triton_sam.video.identities import FoundInstance

WORDS = TrackWords(("spoon", "zebra", "coin"), model="sam3")
SIZE = (concepts.WIDTH, concepts.HEIGHT)
Look = Callable[..., list[FoundInstance]]


class Short(Server):
    """Sends fewer instances than it finds."""

    def infer(self, call: Call) -> Outputs:
        outputs = dict(super().infer(call))
        if concepts.asks(call):
            result = json.loads(text_of(outputs, "result_json"))
            result["concepts"][0]["found"] += 9
            outputs["result_json"] = np.array([json.dumps(result).encode()], object)
        return outputs


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    """Looks in two frames on these servers; returns what is found in the second."""

    def run(*servers: Server, words: TrackWords = WORDS) -> Any:
        known = {f"server:{number}": server for number, server in enumerate(servers)}

        def client(url: str, model: str, **options: Any) -> SAM2TritonClient:
            return SAM2TritonClient(url, model, transport=known[url], retries=0, **options)

        monkeypatch.setattr(track_words, "SAM2TritonClient", client)
        with word_finder(list(known), words, SIZE, None, 5.0) as find:
            find(ClipFrame(0, b"the first frame"))
            return find(ClipFrame(1, b"the second frame"))

    return run


def asked(server: Server) -> list[list[str]]:
    """Texts of each request, of the second frame."""
    requests = [[one["text"] for one in concepts.prompt_of(call)["concepts"]] for call in server.clicks]
    return requests[len(requests) // 2 :]


def check(found: list[FoundInstance]) -> None:
    """Every instance of the words, each with its own."""
    spoon, *coins = [*concepts.WORLD["spoon"], *concepts.WORLD["coin"][:2]]
    assert [(one.concept, one.score) for one in found] == [(0, spoon[1]), *((2, score) for _, score in coins)]
    for one, (box, _) in zip(found, [spoon, *coins], strict=True):
        assert np.array_equal(from_rle(one.rle), concepts.mask_of(box))


def test_words_of_small_frames_go_in_one_request(look: Look) -> None:
    server = Server()
    check(look(server))
    assert asked(server) == [["spoon", "zebra", "coin"]]
    assert server.kinds == ["encode", "click"] * 2


def test_words_of_large_frames_go_in_several(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the instances of each have room in the answer."""
    monkeypatch.setattr(get_settings(), "max_answer_pixels", 250 * concepts.WIDTH * concepts.HEIGHT)
    server = Server()
    check(look(server))
    assert asked(server) == [["spoon", "zebra"], ["coin"]]
    assert server.kinds == ["encode", "click", "click"] * 2


def test_instances_that_a_server_does_not_send_are_told_once(look: Look, capsys: pytest.CaptureFixture[str]) -> None:
    check(look(Short()))
    told = capsys.readouterr().err
    assert told.count("found") == 1
    assert "frame 0: the server has found 10 of 'spoon' and sends the best 1, as its limits are" in told
    look(Server())
    assert capsys.readouterr().err == ""


# several servers


class Refusing(Server):
    """Cannot find words, for a reason."""

    def __init__(self, reason: TritonSamError) -> None:
        super().__init__()
        self.reason = reason

    def infer(self, call: Call) -> Outputs:
        raise self.reason


@pytest.mark.parametrize(
    "reason",
    [NotFound("Request for unknown model"), ServerUnreachable("nobody there"), Unsupported("takes no text")],
    ids=lambda reason: type(reason).__name__,
)
def test_a_server_that_cannot_find_words_leaves_it_to_the_next(look: Look, reason: TritonSamError) -> None:
    able = Server()
    check(look(Refusing(reason), able))
    assert asked(able) == [["spoon", "zebra", "coin"]]


def test_the_last_server_says_why_none_can(look: Look) -> None:
    with pytest.raises(Unsupported, match="takes no text"):
        look(Refusing(NotFound("Request for unknown model")), Refusing(Unsupported("takes no text")))
    with pytest.raises(InvalidInput, match="too much"):
        look(Refusing(InvalidInput("too much")), Server())
