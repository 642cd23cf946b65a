"""Which requests for concepts a segmenter takes, before anything waits or is encoded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.backend.concept_helpers import PICTURE, ColourEngine, Mail, asked
from tests.unit.backend.scheduler_helpers import Counts
from triton_sam.backend import core as core_module
from triton_sam.backend.core import LocalCore, Source
from triton_sam.core.images import file_bytes
from triton_sam.engines.base import Capacity
from triton_sam.errors import ImageExpired, InvalidInput, Unsupported
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.settings import Settings

IMAGE = Source(file_bytes(PICTURE))
PIXELS = PICTURE.width * PICTURE.height


class Served(ColourEngine):
    encoder_numbers = "float32"

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Served:
    engine = Served()
    monkeypatch.setattr(core_module, "load_engine", lambda *_: engine)
    monkeypatch.setattr(core_module.Image, "MAX_IMAGE_PIXELS", core_module.Image.MAX_IMAGE_PIXELS)
    return engine


@pytest.fixture
def core(engine: Served) -> Iterator[LocalCore]:
    settings = Settings(max_answer_pixels=200 * PIXELS)
    core = LocalCore(get_spec(DEFAULT_MODEL), Path(), "1", settings, Counts())
    yield core
    core.close()


def send(core: LocalCore, document: dict[str, Any], source: Source = IMAGE) -> Mail:
    job = asked(document)
    core.submit(job, source)
    assert isinstance(job.reply, Mail)
    return job.reply


def test_an_image_and_then_its_key(core: LocalCore, engine: Served) -> None:
    assert len(send(core, {"text": "red"}).answer["json"]["masks"]) == 3
    assert len(send(core, {"text": ["blue", "yellow"]}, Source()).answer["json"]["masks"]) == 3
    assert engine.encodes == 1


def test_what_cannot_be_found_is_refused_before_the_image_is_encoded(core: LocalCore, engine: Served) -> None:
    for document, sentence in (
        ({"text": ["red", "a b c d e f g h i"]}, "9 tokens"),
        ({"exemplars": [[10, 10, 321, 20]]}, "outside the image of 320 x 240"),
        ({"concepts": [{"text": "red"}, {"exemplars": [[10, 10, 20, 241]]}]}, "exemplar 0 of concept 1"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            send(core, document)
        with pytest.raises(ImageExpired):
            send(core, document, Source())
    assert engine.encodes == 0
    assert send(core, {"text": "red"}).answer
    with pytest.raises(InvalidInput, match="outside the image"):
        send(core, {"exemplars": [[10, 10, 321, 20]]}, Source())


def test_more_instances_than_fit_are_found_but_not_returned(core: LocalCore) -> None:
    """Low-resolution logits are larger than these pixels, and on a CPU the engine returns them."""
    room = 200 * PIXELS // (8 * 256 * 256)
    told = send(core, {"text": "red", "score_threshold": 0}).answer["json"]["concepts"]
    assert [(concept["found"], concept["returned"]) for concept in told] == [(16, 16)]
    told = send(core, {"text": ["red", "blue", "green"], "score_threshold": 0}, Source()).answer["json"]["concepts"]
    assert [(concept["found"], concept["returned"]) for concept in told] == [(16, room // 3)] * 3


def test_an_embedding_is_not_enough(core: LocalCore) -> None:
    with pytest.raises(InvalidInput, match="need the image or its image_key"):
        send(core, {"text": "red", "image_size": [4, 4]}, Source(None, np.zeros((1, 256, 64, 64), np.float32)))


def test_an_engine_without_concepts(core: LocalCore, engine: Served) -> None:
    engine.capacity = Capacity()
    with pytest.raises(Unsupported, match="takes no text or exemplars"):
        send(core, {"text": "red"})
    assert engine.looked_for == []
