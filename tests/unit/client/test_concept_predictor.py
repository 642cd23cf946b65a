"""Words and examples by Meta's names."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit import concept_messages as concepts
from tests.unit.client.test_concepts import PICTURE, Server
from tests.unit.service.helpers import image_file
from triton_sam import ConceptPredictor, SAM2TritonClient
from triton_sam.errors import InvalidInput

#: ``Sam3Processor`` of facebookresearch/sam3, sam3/model/sam3_image_processor.py: method -> its parameters.
PUBLISHED = {
    "set_image": ["image", "state"],
    "set_text_prompt": ["prompt", "state"],
    "add_geometric_prompt": ["box", "label", "state"],
    "reset_all_prompts": ["state"],
    "set_confidence_threshold": ["threshold", "state"],
}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def predictor(server: Server) -> Iterator[ConceptPredictor]:
    with (
        SAM2TritonClient(transport=server, model_type="sam3") as client,
        ConceptPredictor(client=client) as made,
    ):
        yield made


def prompt(server: Server, index: int = -1) -> dict[str, Any]:
    return concepts.prompt_of(server.clicks[index])


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_names(name: str) -> None:
    assert list(inspect.signature(getattr(ConceptPredictor, name)).parameters)[1:] == PUBLISHED[name]


def test_a_text(predictor: ConceptPredictor, server: Server) -> None:
    state = predictor.set_image(Image.open(io.BytesIO(PICTURE)))
    assert (state["original_width"], state["original_height"]) == (concepts.WIDTH, concepts.HEIGHT)
    assert "masks" not in state
    assert predictor.set_text_prompt(prompt="coin", state=state) is state
    boxes = [box for box, _ in concepts.WORLD["coin"][:2]]
    assert np.array_equal(state["masks"], [[concepts.mask_of(box)] for box in boxes])
    assert (state["masks"].dtype, state["boxes"].dtype) == (np.bool_, np.float32)
    assert state["boxes"].tolist() == [list(box) for box in boxes]
    assert state["scores"] == pytest.approx([0.93, 0.75])
    assert prompt(server)["score_threshold"] == 0.5
    predictor.set_text_prompt("zebra", state)
    assert state["masks"].shape == (0, 1, concepts.HEIGHT, concepts.WIDTH)
    assert (state["boxes"].shape, state["scores"].shape) == ((0, 4), (0,))


def test_boxes_add_up_and_keep_the_text(predictor: ConceptPredictor, server: Server) -> None:
    state = predictor.set_image(PICTURE)
    predictor.add_geometric_prompt([0.5, 0.5, 0.5, 0.4], True, state)
    assert prompt(server)["concepts"] == [{"exemplars": [[2.75, 1.5, 8.25, 3.5]], "exemplar_labels": [1]}]
    assert len(state["scores"]) == len(concepts.WORLD["visual"])
    predictor.add_geometric_prompt(np.array([1 / 11, 0.2, 2 / 11, 0.4]), np.False_, state)
    predictor.set_text_prompt("coin", state)
    [concept] = prompt(server)["concepts"]
    assert concept["text"] == "coin"
    assert concept["exemplar_labels"] == [1, 0]
    assert concept["exemplars"][1] == pytest.approx([0, 0, 2, 2], abs=1e-6)
    predictor.set_text_prompt("spoon", state)
    assert prompt(server)["concepts"][0]["text"] == "spoon"
    assert len(prompt(server)["concepts"][0]["exemplars"]) == 2


def test_reset(predictor: ConceptPredictor, server: Server) -> None:
    state = predictor.set_image(PICTURE)
    predictor.set_text_prompt("coin", state)
    predictor.add_geometric_prompt([0.5, 0.5, 0.5, 0.4], True, state)
    assert predictor.reset_all_prompts(state) is None
    assert set(state) == {"image", "image_key", "original_width", "original_height"}
    predictor.add_geometric_prompt([0.5, 0.5, 0.5, 0.4], True, state)
    assert "text" not in prompt(server)["concepts"][0]
    assert len(prompt(server)["concepts"][0]["exemplars"]) == 1


def test_the_threshold(predictor: ConceptPredictor, server: Server) -> None:
    state = predictor.set_image(PICTURE)
    assert predictor.set_confidence_threshold(0.7, state) is state
    assert predictor.set_confidence_threshold(0.6) is None
    assert server.clicks == [], "there is nothing to ask yet"
    predictor.set_text_prompt("coin", state)
    assert len(state["scores"]) == 2
    predictor.set_confidence_threshold(0.1, state)
    assert len(state["scores"]) == 3
    predictor.set_confidence_threshold(0.9, state)
    assert len(state["scores"]) == 1
    assert [prompt(server, index)["score_threshold"] for index in range(3)] == [0.6, 0.1, 0.9]


def test_several_states(predictor: ConceptPredictor, server: Server) -> None:
    first, second = predictor.set_image(PICTURE), predictor.set_image(image_file(30, 20))
    assert first["image_key"] != second["image_key"]
    for state in (first, second, first):
        predictor.set_text_prompt("spoon", state)
        assert server.clicks[-1].inputs["image_key"][0].decode() == state["image_key"]
    assert server.kinds == ["encode", "encode", "click", "click", "click"]
    again = predictor.set_image(image_file(12, 12), first)
    assert again is first
    assert set(first) == {"image", "image_key", "original_width", "original_height"}
    assert (first["original_width"], first["original_height"]) == (12, 12)


def test_an_expired_image_is_sent_again(predictor: ConceptPredictor, server: Server) -> None:
    first, _ = predictor.set_image(PICTURE), predictor.set_image(image_file(30, 20))
    server.images.clear()
    server.version = "2"
    predictor.set_text_prompt("coin", first)
    assert len(first["scores"]) == 2
    assert first["image_key"] in server.images


def test_what_is_wrong_leaves_the_state_as_it_was(predictor: ConceptPredictor, server: Server) -> None:
    state = predictor.set_image(PICTURE)
    before = dict(state)
    for box in ([0.5, 0.5, 0, 0.2], [0.5, 0.5, 0.2], "here", [np.nan, 0, 1, 1], [2, 2, 0.5, 0.5]):
        with pytest.raises(InvalidInput, match="box"):
            predictor.add_geometric_prompt(box, True, state)
    with pytest.raises(InvalidInput, match="negative exemplars alone"):
        predictor.add_geometric_prompt([0.5, 0.5, 0.2, 0.2], False, state)
    with pytest.raises(InvalidInput, match="text is empty"):
        predictor.set_text_prompt(" ", state)
    for threshold in (-1, 2, True, "high"):
        with pytest.raises(InvalidInput, match="from 0 to 1"):
            predictor.set_confidence_threshold(threshold, state)  # type: ignore[arg-type]
    assert state == before
    assert server.clicks == []
    for use in (
        lambda: predictor.set_text_prompt("coin", {}),
        lambda: predictor.add_geometric_prompt([0] * 4, True, {}),
    ):
        with pytest.raises(InvalidInput, match="the one that set_image returns"):
            use()


def test_a_box_over_the_edge_is_cut_off(predictor: ConceptPredictor, server: Server) -> None:
    predictor.add_geometric_prompt([0, 1, 0.2, 0.4], True, predictor.set_image(PICTURE))
    assert prompt(server)["concepts"][0]["exemplars"][0] == pytest.approx([0, 4, 1.1, 5])


def test_its_own_client_is_closed() -> None:
    predictor = ConceptPredictor("127.0.0.1:1")
    with predictor:
        pass
    with pytest.raises(InvalidInput, match="the client is closed"):
        predictor.set_image(PICTURE)
    given = SAM2TritonClient(transport=Server(), model_type="sam3")
    ConceptPredictor(client=given).close()
    assert given.set_image(PICTURE)
