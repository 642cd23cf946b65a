"""What makes two runs the same job, and how a difference is told."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from triton_sam.batch.records import SegmentOptions, WordOptions
from triton_sam.batch.state.definition import JobDefinition, PromptsFile, differences
from triton_sam.core.image_choice import ImageChoice
from triton_sam.errors import InvalidInput

OPTIONS = SegmentOptions("sam2", {"points_per_side": 32}, None, ImageChoice(channel=1, window=(0, 255)))
JOB = JobDefinition(("photos", "more/*.tif"), OPTIONS, None, {"coco": {}, "labels": {"format": "png"}})


def test_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "boxes.json"
    file.write_text("{}")
    job = replace(JOB, prompts=PromptsFile.of("coco", file))
    again = JobDefinition.from_json(job.to_json())
    assert again == replace(job, inputs=tuple(job.inputs))
    assert again.digest == job.digest != JOB.digest
    assert differences(again, job) == ""


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (
            replace(JOB, options=replace(OPTIONS, everything={"points_per_side": 16})),
            "points_per_side was 32 and is 16; give another --out, or the former option",
        ),
        (replace(JOB, options=replace(OPTIONS, model="sam1")), "model was sam2 and is sam1"),
        (replace(JOB, options=replace(OPTIONS, clean=40)), "clean was not given and is 40"),
        (replace(JOB, options=replace(OPTIONS, choice=ImageChoice(window=(0, 255)))), "channel was 1 and is not given"),
        (replace(JOB, options=replace(OPTIONS, everything=None)), "everything mode was on and is off"),
        (replace(JOB, inputs=("photos",)), "the inputs were 'photos' and 'more/*.tif' and are 'photos'"),
        (replace(JOB, outputs={"coco": {}}), "the outputs were coco and labels and are coco"),
        (replace(JOB, outputs={"coco": {}, "labels": {"format": "tiff32"}}), "labels format was png and is tiff32"),
        (
            replace(JOB, inputs=("a",), options=SegmentOptions("x", None, 3)),
            "everything mode was on and is off, clean was not given and is 3 and 3 more differences; "
            "give another --out, or the former options",
        ),
    ],
)
def test_differences(new: JobDefinition, told: str) -> None:
    sentence = differences(JobDefinition.from_json(JOB.to_json()), new)
    assert told in sentence
    assert sentence.startswith("the folder holds another job: ")
    assert new.digest != JOB.digest


WORDS = replace(JOB, options=SegmentOptions("sam3", words=WordOptions(("coin", "spoon"), 0.4)))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (WordOptions(("coin",), 0.4), 'text was "coin", "spoon" and is "coin"; give another --out'),
        (WordOptions(("spoon", "coin"), 0.4), 'text was "coin", "spoon" and is "spoon", "coin"'),
        (WordOptions(("coin", "spoon")), "score threshold was 0.4 and is not given"),
        (WordOptions(("coin", "spoon"), 0.4, 7), "max instances was not given and is 7"),
        (None, 'is not given and text was "coin", "spoon" and is not given'),
        (WORDS.options.words, ""),
    ],
)
def test_other_words_are_another_job(words: WordOptions | None, told: str) -> None:
    new = replace(WORDS, options=replace(WORDS.options, words=words))
    assert JobDefinition.from_json(new.to_json()) == replace(new, inputs=tuple(new.inputs))
    assert told in differences(JobDefinition.from_json(WORDS.to_json()), new)
    assert (new.digest == WORDS.digest) == (not told)


def test_jobs_without_words_are_those_of_older_versions() -> None:
    assert "words" not in JOB.to_json()


def test_numbers_of_numpy_are_numbers() -> None:
    job = replace(JOB, options=replace(OPTIONS, everything={"points_per_side": np.int64(32)}))
    assert job.digest == JOB.digest
    with pytest.raises(InvalidInput, match="must be JSON"):
        replace(JOB, options=replace(OPTIONS, everything={"points_per_side": object()})).to_json()


def test_prompts_are_read_again_only_if_they_may_have_changed(tmp_path: Path) -> None:
    file = tmp_path / "boxes.json"
    file.write_text("one")
    known = PromptsFile.of("coco", file)
    before = file.stat()
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert PromptsFile.of("coco", file, known) is known  # it has not been read

    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    other = PromptsFile.of("coco", file, known)
    told = differences(replace(JOB, prompts=known), replace(JOB, prompts=other))
    assert "the prompts in boxes.json were others when the job began" in told
    assert "prompts were coco and are csv" in differences(
        replace(JOB, prompts=known), replace(JOB, prompts=replace(known, kind="csv"))
    )
    assert "prompts were not given and are coco" in differences(JOB, replace(JOB, prompts=known))
    assert "prompts were coco and are not given" in differences(replace(JOB, prompts=known), JOB)

    moved = file.rename(tmp_path / "moved.json")
    same = PromptsFile.of("coco", moved, other)
    assert differences(replace(JOB, prompts=other), replace(JOB, prompts=same)) == ""
    with pytest.raises(InvalidInput, match=r"boxes.json cannot be read: No such file"):
        PromptsFile.of("coco", file)


@pytest.mark.parametrize("text", ["", "[]", "{}", JOB.to_json().replace('"model"', '"mood"')])
def test_damaged(text: str) -> None:
    with pytest.raises(InvalidInput, match="damaged"):
        JobDefinition.from_json(text)


def test_newer() -> None:
    with pytest.raises(InvalidInput, match="newer version of triton-sam: update this one"):
        JobDefinition.from_json(JOB.to_json().replace('"version": 1', '"version": 2'))
