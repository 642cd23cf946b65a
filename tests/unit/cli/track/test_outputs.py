"""`triton-sam track`: its outputs as other libraries read them, and wrong options."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as masks
from pycocotools.coco import COCO

from tests.unit.cli.helpers import Run, assert_one_sentence
from tests.unit.client.video_server import FakeVideoServer
from tests.video_clips import COUNT, HEIGHT, WIDTH, write_folder, write_video


def test_everything_that_is_written(server: FakeVideoServer, run: Run) -> None:
    write_video(Path("v.mp4"))
    outputs = [word for name in ("o.mkv", "masks/", "ytvis.json") for word in ("--out", name)]
    prompted = ("v.mp4", "--point", "0,4,4", "--point", "0,30,40,0", "--box", "2,0,20,20,40,300")
    ended = run(*prompted, *outputs)
    assert (ended.code, ended.out) == (0, f"2 objects in {COUNT} frames: o.mkv, masks, ytvis.json\n")
    prompts = server.done("prompt")
    assert [(prompt["frame"], prompt["object"]) for prompt in prompts] == [(0, 1), (2, 300)]
    assert prompts[0]["labels"] == [1, 0]
    assert prompts[1]["box"] == [0, 20, 20, 40]
    labels = [np.asarray(Image.open(path)) for path in sorted(Path("masks").iterdir())]
    assert [label.dtype for label in labels] == [np.dtype(np.int32)] * COUNT or labels[0].dtype == np.uint16
    assert {int(value) for label in labels for value in np.unique(label)} == {0, 1, 300}
    assert run(*prompted, "--out", "coco.json", "--json", "coco").code == 0
    document = COCO("coco.json")
    found = document.loadAnns(document.getAnnIds(imgIds=[3]))
    assert {entry["track_id"] for entry in found} == {1, 300}
    for entry in found:
        np.testing.assert_array_equal(document.annToMask(entry) > 0, labels[2] == entry["track_id"])
    youtube = json.loads(Path("ytvis.json").read_text())
    assert youtube["videos"][0]["length"] == COUNT
    assert [entry["object"] for entry in youtube["annotations"]] == [1, 300]
    assert [len(entry["segmentations"]) for entry in youtube["annotations"]] == [COUNT, COUNT]
    assert youtube["annotations"][0]["bboxes"][0] == [0, 0, 16, 16]
    for entry in youtube["annotations"]:
        for index, mask in enumerate(entry["segmentations"]):
            found = labels[index] == entry["object"]
            assert (mask is None) == (not found.any())
            if mask is not None:
                np.testing.assert_array_equal(masks.decode(mask) > 0, found)
                assert entry["areas"][index] == found.sum()
    with av.open("o.mkv") as overlay:
        first = next(overlay.decode(video=0)).to_ndarray(format="rgb24")
    assert first[40, 50].tolist() == pytest.approx([90] * 3, abs=12)
    assert first[8, 8, 0] > 180


def test_labels_are_named_as_the_frames_are(server: FakeVideoServer, run: Run) -> None:
    write_folder(Path("f"), ["b 2.png", "b 10.png"])
    assert run("f", "--point", "1,4,4", "--out", "masks").code == 0
    assert sorted(path.name for path in Path("masks").iterdir()) == ["b 10.png", "b 2.png"]
    first, second = (Image.open(Path("masks") / name) for name in ("b 2.png", "b 10.png"))
    assert (first.mode, np.asarray(first).max()) == ("P", 0)  # before the prompt
    assert np.asarray(second).max() == 1


def test_backward_and_both_ways(server: FakeVideoServer, run: Run) -> None:
    write_video(Path("v.mp4"))
    assert run("v.mp4", "--point", "4,20,4", "--reverse").code == 0
    assert [video["frame"] for video in server.done("track")] == [4, 3, 2, 1, 0]
    server.calls.clear()
    assert run("v.mp4", "--point", "4,20,4", "--both").code == 0
    assert [(video["frame"], video["reverse"]) for video in server.done("track")] == [
        *((frame, False) for frame in range(4, COUNT)),
        *((frame, True) for frame in range(3, -1, -1)),
    ]


def test_both_ways_from_frame_1_reach_frame_0(server: FakeVideoServer, run: Run) -> None:
    write_video(Path("v.mp4"))
    assert run("v.mp4", "--point", "1,8,4", "--both", "--out", "c.json").code == 0
    assert server.done("track")[-1]["frame"] == 0
    (found,) = json.loads(Path("c.json").read_text())["annotations"]
    assert None not in found["segmentations"]


def test_a_mask_as_the_prompt(server: FakeVideoServer, run: Run) -> None:
    write_video(Path("v.mp4"))
    Image.fromarray(np.full((HEIGHT, WIDTH), 7, np.uint8)).save("a,b.png")
    assert run("v.mp4", "--mask", "1,a,b.png,3").code == 0
    (prompt,) = server.done("prompt")
    assert (prompt["frame"], prompt["object"], prompt["mask"]["size"]) == (1, 3, [HEIGHT, WIDTH])


# wrong options


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "there is nothing to track: give a --point"),
        (["--point", "1,2"], "'1,2' is not a --point FRAME,X,Y[,LABEL][,OBJECT]"),
        (["--point", "0,1,2,3"], "a label is 1 (object) or 0 (background)"),
        (["--point", "0.5,1,2"], "frames and objects are whole numbers"),
        (["--point", "99,1,2"], "there is no frame 99 in v.mp4: it has 8 frames"),
        (["--box", "0,1,2,3"], "is not a --box FRAME,X0,Y0,X1,Y1[,OBJECT]"),
        (["--box", "0,1,2,3,4", "--box", "0,1,2,3,5"], "object 1 has two boxes in frame 0"),
        (["--mask", "x"], "'x' is not a --mask FRAME,FILE[,OBJECT]"),
        (["--mask", "0,none.png"], "the mask none.png cannot be read: No such file"),
        (["--mask", "0,small.png"], "the mask small.png has 4 x 4 pixels and the video 64 x 48"),
        (["--mask", "0,v.mp4"], "the image format is unknown"),
        (["--mask", "0,small.png", "--point", "0,1,1"], "object 1 has a mask and another prompt in frame 0"),
        (["--point", "0,1,1", "--out", "x.gif"], "x.gif is neither .mp4, .mov, .mkv, .tif, .zarr nor .json"),
        (["--point", "0,1,1", "--out", "no/x.mp4"], "the folder of no/x.mp4 does not exist"),
        (["--point", "0,1,1", "--out", "v.mp4/"], "v.mp4 is a file"),
        (["--point", "0,1,1", "--out", "x.json", "--json", "xml"], "--json is youtube-vis or coco, not 'xml'"),
        (["--point", "0,1,1", "--both", "--reverse"], "--reverse and --both contradict each other"),
        (["--point", "0,1,1,1,0", "--out", "m/"], "object 0 has no place in label images"),
    ],
)
def test_wrong_options_are_told_before_anything_is_sent(
    words: list[str], told: str, server: FakeVideoServer, run: Run
) -> None:
    write_video(Path("v.mp4"))
    Image.new("L", (4, 4)).save("small.png")
    assert_one_sentence(run("v.mp4", *words), told)
    assert not server.calls
    assert {path.name for path in Path().iterdir()} - {"home"} == {"v.mp4", "small.png"}


def test_no_server_is_told_at_once(run: Run) -> None:
    write_video(Path("v.mp4"))
    assert_one_sentence(run("v.mp4", "--point", "0,4,4"), "no server responds at 127.0.0.1:")


def test_without_pyav(run: Run, server: FakeVideoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    write_video(Path("v.mp4"))
    write_folder(Path("f"), ["0.png"])
    monkeypatch.setitem(sys.modules, "av", None)
    assert_one_sentence(run("v.mp4", "--point", "0,4,4"), "video files need PyAV: ")
    assert run("f", "--point", "0,4,4", "--out", "m/").code == 0
