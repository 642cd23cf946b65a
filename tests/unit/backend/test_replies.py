from __future__ import annotations

import base64
import json
from collections.abc import Set
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from triton_sam.backend.concept_replies import build_concepts
from triton_sam.backend.jobs import Needs, SegmentJob
from triton_sam.backend.replies import ALL_OUTPUTS, DEFAULT_OUTPUTS, ModelInfo, build_reply, needs_of, wanted_outputs
from triton_sam.core.concepts.request import ConceptPrompt, ConceptRequest
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.mask_cleaning import Cleaning, clean_mask
from triton_sam.core.masks import FORMATS, decode, full_size, polygons, unpack_bits
from triton_sam.core.prompts import ObjectPrompt, Prompt
from triton_sam.engines.base import Decoded, HostEmbedding
from triton_sam.engines.concepts import Instances
from triton_sam.errors import InternalError, TritonSamError

WIDTH, HEIGHT, SIDE = 13, 7, 8
FRAME = Frame(WIDTH, HEIGHT, 32, ResizePolicy.SQUASH)
WHO = ModelInfo("sam2:tiny", "7", "8-bit")
POINT = ObjectPrompt(np.zeros((1, 2), np.float32), np.ones(1, np.int32))


class NoReply:
    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        raise AssertionError

    def fail(self, error: TritonSamError) -> None:
        raise AssertionError

    def flush(self) -> None: ...

    def is_cancelled(self) -> bool:
        return False


def job(form: str | None, objects: int = 1) -> SegmentJob:
    prompt = None if form is None else Prompt((POINT,) * objects, format=form)
    made = SegmentJob(NoReply(), prompt, "the key", embedding=HostEmbedding(FRAME, {}))
    made.timings["decode"] = 1.23456
    return made


def answers(objects: int, each: int) -> list[Decoded]:
    """Half planes, each object's another one; the scores fall within an object and rise between them."""
    rng = np.random.default_rng(7)
    made = []
    for index in range(objects):
        slopes = rng.normal(size=(each, 2, 1, 1)).astype(np.float32)
        grid = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j].astype(np.float32)
        scores = np.array([0.3 + 0.1 * index - 0.01 * rank for rank in range(each)], np.float32)
        made.append(Decoded(scores, slopes[:, 0] * grid[0] + slopes[:, 1] * grid[1]))
    return made


def expected_masks(decoded: list[Decoded]) -> npt.NDArray[np.bool_]:
    return np.stack([full_size(logits, FRAME) for answer in decoded for logits in answer.logits])


def result_of(outputs: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    assert outputs["result_json"].shape == (1,)
    assert outputs["result_json"].dtype == object
    assert isinstance(outputs["result_json"][0], bytes)
    result: dict[str, Any] = json.loads(outputs["result_json"][0])
    return result


# which outputs


@pytest.mark.parametrize(
    ("requested", "wanted"),
    [
        (ALL_OUTPUTS, DEFAULT_OUTPUTS),
        ({"result_json"}, {"result_json"}),
        ({"masks", "low_res_logits"}, {"masks", "low_res_logits"}),
        (ALL_OUTPUTS - {"embedding"}, ALL_OUTPUTS - {"embedding"}),
        (set(), set()),
    ],
)
def test_wanted_outputs(requested: Set[str], wanted: Set[str]) -> None:
    assert wanted_outputs(requested) == wanted


def test_the_large_tensors_are_no_default() -> None:
    assert {"masks", "low_res_logits", "embedding"} == ALL_OUTPUTS - DEFAULT_OUTPUTS


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["result_json", "image_key", "scores", "masks", "low_res_logits"])
def test_only_what_is_wanted_is_built(form: str, name: str) -> None:
    assert list(build_reply(job(form), answers(1, 1), WHO, {name})) == [name]


# tensors


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("objects", "each"), [(1, 1), (1, 3), (4, 1), (2, 3)])
def test_tensors(form: str, objects: int, each: int) -> None:
    decoded = answers(objects, each)
    outputs = build_reply(job(form, objects), decoded, WHO, ALL_OUTPUTS)
    assert set(outputs) == ALL_OUTPUTS - {"embedding"}
    assert outputs["scores"].shape == (objects, each)
    assert outputs["low_res_logits"].shape == (objects, each, SIDE, SIDE)
    assert outputs["masks"].shape == (objects * each, HEIGHT, (WIDTH + 7) // 8)
    assert outputs["scores"].dtype == outputs["low_res_logits"].dtype == np.float32
    assert outputs["masks"].dtype == np.uint8
    assert np.array_equal(outputs["scores"], [answer.scores for answer in decoded])
    assert np.array_equal(outputs["low_res_logits"], [answer.logits for answer in decoded])
    assert np.array_equal(unpack_bits(outputs["masks"], WIDTH), expected_masks(decoded))
    assert outputs["image_key"].tolist() == [b"the key"]


def test_an_encode_only_job() -> None:
    outputs = build_reply(job(None), [], WHO, ALL_OUTPUTS)
    assert set(outputs) == {"image_key", "result_json"}
    result = result_of(outputs)
    assert (result["image_key"], result["width"], result["height"]) == ("the key", WIDTH, HEIGHT)
    assert not {"mask", "masks", "score"} & set(result)


# JSON


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("wanted", [{"result_json"}, ALL_OUTPUTS])
def test_the_head_of_the_json(form: str, wanted: Set[str]) -> None:
    made = job(form, 2)
    result = result_of(build_reply(made, answers(2, 3), WHO, wanted))
    assert (result["image_key"], result["model"], result["model_version"]) == ("the key", "sam2:tiny", "7")
    assert result["encoder"] == "8-bit"
    assert (result["width"], result["height"]) == (WIDTH, HEIGHT)
    assert result["timings_ms"]["decode"] == 1.235
    assert result["timings_ms"]["total"] >= result["timings_ms"]["answer"] >= 0
    assert [entry["object"] for entry in result["masks"]] == [0, 0, 0, 1, 1, 1]
    assert [entry["encoding"] for entry in result["masks"]] == [form] * 6
    assert np.allclose([entry["score"] for entry in result["masks"]], [0.3, 0.29, 0.28, 0.4, 0.39, 0.38])
    assert result["score"] == result["masks"][3]["score"]
    best = {key: value for key, value in result["masks"][3].items() if key not in ("score", "object")}
    assert result["mask"] == best


@pytest.mark.parametrize("form", ["png", "rle", "bits"])
@pytest.mark.parametrize("also", [set(), {"low_res_logits", "scores"}])
def test_masks_in_the_json(form: str, also: Set[str]) -> None:
    decoded = answers(2, 3)
    result = result_of(build_reply(job(form, 2), decoded, WHO, {"result_json", *also}))
    assert np.array_equal([decode(entry) for entry in result["masks"]], expected_masks(decoded))
    assert all((entry["width"], entry["height"]) == (WIDTH, HEIGHT) for entry in result["masks"])


def test_polygons_in_the_json() -> None:
    result = result_of(build_reply(job("polygon"), answers(1, 1), WHO, {"result_json"}))
    (entry,) = result["masks"]
    assert (entry["width"], entry["height"]) == (WIDTH, HEIGHT)
    assert entry["data"]
    for ring in entry["data"]:
        assert len(ring) >= 6
        assert max(ring[::2]) < WIDTH
        assert max(ring[1::2]) < HEIGHT


def test_logits_in_the_json() -> None:
    decoded = answers(1, 3)
    result = result_of(build_reply(job("logits"), decoded, WHO, {"result_json"}))
    for entry, logits in zip(result["masks"], decoded[0].logits, strict=True):
        assert (entry["width"], entry["height"]) == (SIDE, SIDE)
        sent = np.frombuffer(base64.b64decode(entry["data"]), "<f4").reshape(SIDE, SIDE)
        assert np.array_equal(sent, logits)


@pytest.mark.parametrize(
    ("form", "tensor", "twice"),
    [
        ("bits", "masks", False),
        ("logits", "low_res_logits", False),
        ("bits", "low_res_logits", True),
        ("logits", "masks", True),
        ("png", "masks", True),
        ("rle", "masks", True),
        ("polygon", "masks", True),
    ],
)
def test_data_that_travel_as_a_tensor_are_not_in_the_json(form: str, tensor: str, twice: bool) -> None:
    outputs = build_reply(job(form), answers(1, 3), WHO, {"result_json", tensor})
    assert tensor in outputs
    result = result_of(outputs)
    assert all(("data" in entry) is twice for entry in [*result["masks"], result["mask"]])


def test_logits_alone_are_not_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """What predict() asks for must not pay for masks at full size."""
    from triton_sam.core import masks

    monkeypatch.setattr(masks, "full_size", lambda *_: pytest.fail("resized for nothing"))
    outputs = build_reply(job("logits"), answers(1, 3), WHO, {"low_res_logits", "scores", "result_json"})
    assert set(outputs) == {"low_res_logits", "scores", "result_json"}


# cleaned masks


def cleaned_job(form: str, clean: Cleaning) -> SegmentJob:
    made = job(form)
    made.prompt = Prompt((POINT,), format=form, clean=clean)
    return made


def speckled() -> list[Decoded]:
    """One mask with a hole and an island of some pixels each."""
    logits = np.full((1, SIDE, SIDE), -1, np.float32)
    logits[0, :, :4] = 1
    logits[0, 4, 1] = -9
    logits[0, 2, 6] = 9
    return [Decoded(np.ones(1, np.float32), logits)]


@pytest.mark.parametrize("form", ["png", "rle", "bits", "polygon"])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("also", [set(), {"masks"}, {"low_res_logits"}])
def test_cleaned_masks(form: str, is_packed: bool, also: Set[str]) -> None:
    decoded, clean = speckled(), Cleaning(12, 12)
    (full,) = expected_masks(decoded)
    expected = clean_mask(full, clean)
    assert not np.array_equal(expected, full)
    if is_packed:
        decoded = [Decoded(decoded[0].scores, decoded[0].logits, np.packbits(full, axis=1)[None])]
    outputs = build_reply(cleaned_job(form, clean), decoded, WHO, {"result_json", *also})
    result = result_of(outputs)
    assert result["clean"] == {"holes": 12, "islands": 12}
    if "masks" in also:
        assert np.array_equal(unpack_bits(outputs["masks"], WIDTH)[0], expected)
    if form == "polygon":
        assert result["mask"]["data"] == polygons(expected)
    elif "data" in result["mask"]:
        assert np.array_equal(decode(result["mask"]), expected)
    if "low_res_logits" in also:
        assert np.array_equal(outputs["low_res_logits"][0], decoded[0].logits)


@pytest.mark.parametrize(("objects", "each", "copied"), [(1, 1, False), (1, 3, False), (2, 1, True), (2, 3, True)])
def test_packed_masks_of_one_object_are_not_copied(objects: int, each: int, copied: bool) -> None:
    decoded = answers(objects, each)
    expected = expected_masks(decoded)
    packed = np.packbits(expected, axis=2).reshape(objects, each, HEIGHT, -1)
    given = [Decoded(one.scores, None, rows) for one, rows in zip(decoded, packed, strict=True)]
    masks = build_reply(job("bits", objects), given, WHO, {"masks"})["masks"]
    assert np.array_equal(unpack_bits(masks, WIDTH), expected)
    assert np.shares_memory(masks, packed) is not copied


def test_packed_masks_of_one_concept_are_not_copied() -> None:
    (found,) = answers(1, 3)
    packed = np.packbits(expected_masks([found]), axis=2)
    asked = job("bits")
    concept = ConceptPrompt("coin", np.zeros((0, 4), np.float32), np.zeros(0, np.int32))
    asked.prompt = Prompt((), format="bits", concepts=ConceptRequest((concept,)))
    masks = build_concepts(asked, [Decoded(found.scores, None, packed)], WHO, {"masks"})["masks"]
    assert np.shares_memory(masks, packed)


def test_boxes_that_are_no_numbers() -> None:
    (found,) = answers(1, 1)
    asked = job("bits")
    concept = ConceptPrompt("coin", np.zeros((0, 4), np.float32), np.zeros(0, np.int32))
    asked.prompt = Prompt((), format="bits", concepts=ConceptRequest((concept,)))
    boxes = np.array([[0, 0, np.nan, 5]], np.float32)
    asked.instances = (Instances(1.0, 1, boxes, found, 0.0),)
    with pytest.raises(InternalError, match="boxes that the model found are no numbers"):
        build_concepts(asked, [found], WHO, {"result_json"})


def test_without_cleaning_the_response_says_nothing_of_it() -> None:
    assert "clean" not in result_of(build_reply(job("rle"), answers(1, 1), WHO, {"result_json"}))


@pytest.mark.parametrize(
    ("clean", "wanted", "needs"),
    [
        (None, {"result_json"}, Needs(logits=False, columns=True)),
        (None, DEFAULT_OUTPUTS, Needs(logits=False, columns=True)),
        (None, {"result_json", "low_res_logits"}, Needs(logits=True, columns=True)),
        (None, {"result_json", "masks"}, Needs(logits=False, pixels=True)),
        (None, {"masks"}, Needs(logits=False, pixels=True)),
        (None, {"scores"}, Needs(logits=True)),
        (Cleaning(5, 5), {"result_json"}, Needs(logits=False, pixels=True)),
    ],
)
def test_an_rle_needs_columns_or_rows_and_no_logits(clean: Cleaning | None, wanted: Set[str], needs: Needs) -> None:
    """An engine on a GPU may then leave the logits there."""
    assert needs_of(Prompt((POINT,), format="rle", clean=clean), wanted) == needs


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "rle"])
def test_other_forms_need_no_columns(form: str) -> None:
    assert not needs_of(Prompt((POINT,), format=form), ALL_OUTPUTS).columns
    assert not needs_of(Prompt((POINT,), format=form), {"result_json"}).columns


def columns_of(full: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """[M,H,W] -> [M,W,ceil(H/8)], spare bits like the column's last pixel."""
    padded = np.pad(full, ((0, 0), (0, -full.shape[1] % 8), (0, 0)), mode="edge")
    return np.packbits(padded.swapaxes(1, 2), axis=2)


@pytest.mark.parametrize("each", [1, 3])
def test_an_rle_is_made_of_columns_of_rows_or_of_logits(each: int) -> None:
    (answer,) = answers(1, each)
    full = expected_masks([answer])
    of_logits = result_of(build_reply(job("rle"), [answer], WHO, {"result_json"}))
    rows, columns = np.packbits(full, axis=2), columns_of(full)
    for made in (Decoded(answer.scores, None, rows), Decoded(answer.scores, None, None, columns)):
        result = result_of(build_reply(job("rle"), [made], WHO, {"result_json"}))
        assert result["mask"] == of_logits["mask"]
        assert result["masks"] == of_logits["masks"]
    assert of_logits["mask"]["data"]["counts"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("objects", "each"), [(1, 1), (2, 3)])
def test_the_json_is_written_as_json_writes_it(form: str, objects: int, each: int) -> None:
    text = build_reply(job(form, objects), answers(objects, each), WHO, {"result_json"})["result_json"][0].decode()
    result = json.loads(text)
    assert json.dumps(result) == text
    assert list(result)[-3:] == ["mask", "score", "masks"]
    assert list(result["masks"][0]) == [*result["mask"], "score", "object"]


def test_cleaning_is_not_done_on_the_thread_of_the_decoder() -> None:
    packed = [Decoded(np.ones(1, np.float32), None, np.zeros((1, HEIGHT, 2), np.uint8))]
    assert job("bits").is_light(packed)
    assert not cleaned_job("bits", Cleaning(5, 5)).is_light(packed)
