"""``segment`` with words and examples: the same instances with both clients, straight and through the service."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.unit import concept_messages as concepts
from tests.unit.client.memory_server import MemoryServer, Outputs
from tests.unit.client.test_both_clients import AsyncSide
from tests.unit.service.helpers import SEGMENTERS, Fake, image_file, listening
from triton_sam import ConceptSegmentation, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client.concepts import FoundConcept
from triton_sam.client.wire import Call, text_tensor
from triton_sam.errors import ImageExpired, InvalidInput, Unsupported

PICTURE = image_file(concepts.WIDTH, concepts.HEIGHT)
EXEMPLARS = [[0, 0, 2, 2], [3, 1, 5, 4]]
#: Finds words: what the service reads in the catalogue.
LISTENING = dataclasses.replace(SEGMENTERS["sam3"], prompts=SEGMENTERS["sam3"].prompts | {"text"})


class Server(MemoryServer):
    """Finds words, too."""

    def __init__(self) -> None:
        super().__init__()
        self.models = {"sam2": "sam2:tiny", "sam3": "sam3:shapes"}

    def infer(self, call: Call) -> Outputs:
        if call.parameters.get("about"):  # the service's list of models
            return {"result_json": text_tensor("{}")}
        if not concepts.asks(call):
            return super().infer(call)
        self.calls.append(call)
        key = call.inputs["image_key"][0].decode()
        if key not in self.images:
            raise ImageExpired("it is gone")
        return concepts.answer(call, image_key=key)

    @property
    def clicks(self) -> list[Call]:
        return [call for call in self.calls if "prompt_json" in call.inputs]


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Fake, str]]:
    fake = Fake(segmenters={**SEGMENTERS, "sam3": LISTENING})
    with listening(fake) as port:
        yield fake, f"http://127.0.0.1:{port}"


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture(params=["straight", "service"])
def options(request: pytest.FixtureRequest, server: Server, shared: tuple[Fake, str]) -> dict[str, Any]:
    """Options of a client, to reach the server in memory."""
    if request.param == "straight":
        return {"transport": server, "async_transport": AsyncSide(server), "model_type": "sam3", "retries": 0}
    fake, url = shared
    fake.transport.answer = server.infer
    return {"url": url, "model_type": "sam3", "retries": 0}


Find = Callable[..., ConceptSegmentation]


@pytest.fixture(params=["blocking", "asyncio"])
def find(request: pytest.FixtureRequest, options: dict[str, Any]) -> Find:
    """``segment`` of a new client, with the picture."""

    def blocking(**prompt: Any) -> Any:
        with SAM2TritonClient(**options) as client:
            return client.segment(**{"image": PICTURE} | prompt)

    async def run(**prompt: Any) -> Any:
        async with SpeculativeSAM2Client(**options) as client:
            return await client.segment_async(**{"image": PICTURE} | prompt)

    return blocking if request.param == "blocking" else lambda **prompt: asyncio.run(run(**prompt))


# what comes back


def test_a_word_finds_its_instances(find: Find) -> None:
    found = find(text="coin")
    expected = concepts.WORLD["coin"][:2]  # the third is below the threshold
    assert isinstance(found, ConceptSegmentation)
    assert len(found) == 2
    assert np.array_equal(found.masks.masks, [concepts.mask_of(box) for box, _ in expected])
    assert found.masks.masks.dtype == np.bool_
    assert (found.boxes.dtype, found.boxes.tolist()) == (np.float32, [list(box) for box, _ in expected])
    assert found.scores == pytest.approx([score for _, score in expected])
    assert found.concept_indices.tolist() == found.masks.objects.tolist() == [0, 0]
    assert found.names == ["coin", "coin"]
    assert found.concepts == [FoundConcept("coin", 0.96875, 2, 2)]
    assert found.timings_ms["total"] == 3.5


def test_several_words_are_kept_apart(find: Find) -> None:
    found = find(text=["spoon", "zebra", "coin"], score_threshold=0.1, max_instances=2)
    assert found.names == ["spoon", "coin", "coin"]
    assert found.concept_indices.tolist() == [0, 2, 2]
    assert [(concept.name, concept.found, concept.returned) for concept in found.concepts] == [
        ("spoon", 1, 1),
        ("zebra", 0, 0),
        ("coin", 3, 2),
    ]
    assert found.concepts[1].presence == 0.03125


@pytest.mark.parametrize("form", ["bits", "png", "rle", "polygon"])
def test_nothing_is_an_ordinary_answer(form: str, find: Find) -> None:
    found = find(text="zebra", format=form)
    assert len(found) == 0
    assert found.masks.masks.shape == (0, concepts.HEIGHT, concepts.WIDTH)
    assert found.masks.masks.dtype == np.bool_
    assert found.boxes.shape == (0, 4)
    assert found.scores.shape == (0,)
    assert found.names == found.encoded == []
    assert found.concepts == [FoundConcept("zebra", 0.03125, 0, 0)]


@pytest.mark.parametrize("form", ["png", "rle"])
def test_masks_in_other_forms(form: str, find: Find) -> None:
    found = find(text="coin", format=form)
    assert [entry["encoding"] for entry in found.encoded] == [form, form]
    assert np.array_equal(found.masks.masks, find(text="coin").masks.masks)


@pytest.mark.parametrize("exemplars", [EXEMPLARS, np.array(EXEMPLARS), [np.array(box) for box in EXEMPLARS]])
def test_examples(exemplars: Any, find: Find, server: Server) -> None:
    found = find(exemplars=exemplars, exemplar_labels=np.array([1, 1]))
    assert found.concepts == [FoundConcept(None, 0.96875, 2, 2)]
    assert found.names == ["visual", "visual"]
    [call] = server.clicks
    assert concepts.prompt_of(call)["concepts"] == [{"exemplars": EXEMPLARS, "exemplar_labels": [1, 1]}]


def test_a_word_with_an_example_of_what_it_is_not(find: Find) -> None:
    assert find(text="coin", exemplars=[[0, 0, 2, 2]], exemplar_labels=[0]).boxes.tolist() == [[3, 1, 5, 4]]


def test_concepts_have_examples_of_their_own(find: Find, server: Server) -> None:
    found = find(concepts=({"text": "coin"}, {"exemplars": np.array([[0, 0, 2, 2]]), "exemplar_labels": (1,)}))
    assert found.names == ["coin", "coin", "visual", "visual"]
    assert concepts.prompt_of(server.clicks[0])["concepts"] == [
        {"text": "coin"},
        {"exemplars": [[0, 0, 2, 2]], "exemplar_labels": [1]},
    ]


# what is sent


def test_options_reach_the_server_and_defaults_are_its_own(find: Find, server: Server, options: dict[str, Any]) -> None:
    find(text="  yellow \n bus ", score_threshold=np.float32(0.25), max_instances=np.int64(7), clean=64, format="rle")
    find(text="coin")
    form = "rle" if "url" in options else "bits"  # the service sends fewer bytes
    assert [concepts.prompt_of(call) for call in server.clicks] == [
        {
            "concepts": [{"text": "yellow bus"}],
            "format": "rle",
            "score_threshold": 0.25,
            "max_instances": 7,
            "clean": {"holes": 64, "islands": 64},
        },
        {"concepts": [{"text": "coin"}], "format": form},
    ]
    assert [set(call.inputs) for call in server.clicks] == [{"image_key", "prompt_json"}] * 2
    assert {call.model for call in server.calls} == {"sam3"}


def test_one_key_for_clicks_and_words(options: dict[str, Any], server: Server) -> None:
    with SAM2TritonClient(**options) as first, SAM2TritonClient(**options) as second:
        key = first.set_image(PICTURE)
        assert len(first.segment([[1, 1]]).masks) == 1
        assert len(first.segment(text="coin")) == len(second.segment(image_key=key, text="coin")) == 2
        assert len(second.segment([[1, 1]], image_key=key).masks) == 1
        with pytest.raises(InvalidInput, match="not both"):
            second.segment(image=PICTURE, image_key=key, text="coin")
        with pytest.raises(InvalidInput, match="no image yet"):
            second.segment(text="coin")
    assert server.kinds == ["encode", "click", "click", "click", "click"]


def test_several_objects_with_asyncio(options: dict[str, Any]) -> None:
    async def run() -> Any:
        async with SpeculativeSAM2Client(**options) as client:
            return await client.segment_async(image=PICTURE, objects=[{"points": [[1, 1]]}, {"box": [1, 1, 9, 4]}])

    assert asyncio.run(run()).masks.objects.tolist() == [0, 1]


def test_an_expired_image_is_sent_again(options: dict[str, Any], server: Server) -> None:
    with SAM2TritonClient(**options) as client:
        client.set_image(PICTURE)
        server.images.clear()
        assert len(client.segment(text="coin")) == 2
    assert server.kinds == ["encode", "click", "encode", "click"]


# what is refused


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ({"text": ""}, "text is empty"),
        ({"text": []}, "text is empty"),
        ({"text": "\x00"}, "control characters"),
        ({"text": "🐈"}, "no letter or digit"),
        ({"text": "x" * 401}, "401 characters and 400"),
        ({"text": 7}, "text is a string"),
        ({"text": "a", "points": [[1, 1]]}, "points cannot be combined with text or exemplars"),
        ({"text": "a", "multimask": True}, "multimask cannot be combined"),
        ({"text": "a", "objects": []}, "objects cannot be combined"),
        ({"text": ["a", "b"], "exemplars": EXEMPLARS}, "several texts with exemplars are ambiguous"),
        ({"exemplars": [[5, 1, 3, 4]]}, "exemplar 0 .* is inverted"),
        ({"exemplars": EXEMPLARS, "exemplar_labels": [0, 0]}, "negative exemplars alone"),
        ({"exemplars": EXEMPLARS, "exemplar_labels": [1]}, "2 exemplars have 1 labels"),
        ({"exemplars": 7}, "exemplars is a list"),
        ({"concepts": {"text": "a"}}, "concepts is a list of mappings"),
        ({"concepts": [{"text": "a", "colour": 1}]}, "unknown key 'colour'"),
        ({"concepts": []}, "needs a concept"),
        ({"text": "a", "score_threshold": 2}, "a number from 0 to 1"),
        ({"text": "a", "max_instances": 0}, "max_instances"),
        ({"score_threshold": 0.5}, "score_threshold needs a concept"),
        ({}, "the prompt is empty"),
    ],
)
def test_what_is_wrong_is_not_sent(prompt: dict[str, Any], sentence: str, find: Find, server: Server) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        find(**prompt)
    assert server.calls == []


def test_a_model_without_words(shared: tuple[Fake, str], server: Server) -> None:
    fake, url = shared
    fake.transport.answer = server.infer
    with (
        SAM2TritonClient(url, "sam2") as client,
        pytest.raises(Unsupported, match=r"points, boxes and masks, not text .* setup sam3"),
    ):
        client.segment(image=PICTURE, text="coin")


def test_an_answer_of_an_older_server(server: Server) -> None:
    from triton_sam.errors import InternalError

    class Old(Server):
        def infer(self, call: Call) -> Outputs:
            outputs = dict(super().infer(call))
            if concepts.asks(call):
                outputs["result_json"] = np.array([b'{"masks": []}'], object)
            return outputs

    with SAM2TritonClient(transport=Old()) as client, pytest.raises(InternalError, match="another version"):
        client.segment(image=PICTURE, text="coin")
