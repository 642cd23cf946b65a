"""The parts of ``benchmarks.gpu_tables``: which command each runs, and which figures its lines become."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from triton_sam.bench.figures import Figure

Lines = Sequence[Mapping[str, Any]]
_PROCESSES = 6
#: How masks come to a client: through its connection, or in memory that it offers.
HTTP, MEMORY = "over HTTP", "in memory"
#: The most clients of the crowds, as benchmarks.device_scale and benchmarks.everything_served have them.
_CLICKING, _UPLOADING = 64, 16


def _nothing(_: Lines) -> Iterator[Figure]:
    yield from ()


@dataclass(frozen=True, slots=True)
class Part:
    """One command.

    Attributes:
        file: in docs/data.
        words: after ``python``; ``{folder}``, ``{checkpoint}`` and ``{file}`` are filled in.
        collect: figures of the lines that it prints; not asked if ``writes_file``.
        models: what was measured, in a few words.
        seconds: it is ended after these.
        repository: in the folder.
        picture: width and height of the photograph that clients send, if the command takes one.
        home: the part whose compiled code is used; its own by default.
        first_start: whether compiled code is removed first.
        real_weights: whether the checkpoint is needed.
        writes_file: whether the command writes ``{file}`` itself.
    """

    about: str
    file: str
    words: Sequence[str]
    collect: Callable[[Lines], Iterator[Figure]] = _nothing
    models: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 300.0
    environment: Mapping[str, str] = field(default_factory=dict)
    repository: str = ""
    picture: tuple[int, int] | None = None
    home: str = ""
    first_start: bool = False
    real_weights: bool = False
    writes_file: bool = False


def faster(name: str, value: float, unit: str = "ms", detail: str = "") -> Figure:
    """A figure of which less is better."""
    return Figure(name, value, unit, detail=detail, better="lower")


def rate(name: str, told: Mapping[str, Any], unit: str) -> Figure:
    """Answers a second of a crowd."""
    detail = ", ".join(f"{key} {told[key]} ms" for key in ("p50", "p99") if key in told)
    return Figure(name, told["rate"], unit, detail=detail, better="higher")


def clicks(lines: Lines) -> Iterator[Figure]:
    """Of ``device_scale FOLDER 0 6``: the first start compiles, the second one finds the code."""
    found: dict[int, dict[str, Any]] = {0: {}, _PROCESSES: {}}
    for line in lines:
        if "processes" in line:
            found[line["processes"]] |= line
    for which, processes in (("first", 0), ("later", _PROCESSES)):
        told, about = found[processes], f"{processes or 1} process{'es' if processes else ''}"
        yield faster(f"{which} start until it serves", told["ready_s"], "s", about)
        if told["full_speed_s"] is None:
            raise ValueError(f"the {which} start did not reach full speed")
        yield faster(f"{which} start until full speed", told["full_speed_s"], "s", about)
    for processes, name in ((0, "one process"), (_PROCESSES, f"{_PROCESSES} processes")):
        told, steps = found[processes], found[processes]["steps_ms"]
        yield percentiles(f"new image, {name}", told["image_ms"])
        if processes == 0:
            yield faster(f"of it the encoder, {name}", steps["image"]["encode"], detail="median of the server's steps")
            yield faster(
                f"of it file to pixels, {name}", steps["image"]["image"], detail="median of the server's steps"
            )
            yield faster(f"of it in the model's process, {name}", steps["click"]["total"], detail="of a click, median")
        yield percentiles(f"click, {name}", told["click_ms"], "packed bits")
        yield percentiles(f"image and ten clicks, {name}", told["image_and_10_ms"])
        for count in (1, 8, 32, _CLICKING):
            plural = "s" if count > 1 else ""
            yield rate(f"clicks a second, {count} client{plural}, {name}", told[f"clicks_{count}"], "clicks/s")
        yield rate(f"images a second, {_UPLOADING} clients, {name}", told[f"images_{_UPLOADING}"], "images/s")


def percentiles(name: str, told: Mapping[str, float], about: str = "") -> Figure:
    """The median; p95 and p99 in the detail."""
    detail = f"p95 {told['p95']} ms, p99 {told['p99']} ms" + (f"; {about}" if about else "")
    return faster(name, told["p50"], detail=detail)


def service(lines: Lines) -> Iterator[Figure]:
    """Of ``service_scale FOLDER 4``."""
    for line in lines:
        if "form" in line:
            for count in (1, 16, _CLICKING):
                plural = "s" if count > 1 else ""
                name = f"clicks a second through the service, {count} client{plural}, {line['form']}"
                yield rate(name, line[str(count)], "clicks/s")


def kills(lines: Lines) -> Iterator[Figure]:
    """Of ``device_kills FOLDER 6``."""
    told = next(line for line in lines if "kills" in line)
    about = f"median {told['back_s']['median']} s of {told['kills']} kills; 8 people at work"
    yield faster("a killed worker serves again", told["back_s"]["worst"], "s", about)
    yield faster("requests without an answer", told["outcomes"].get("no answer", 0), "", "of 8 people at work")


def everything(lines: Lines) -> Iterator[Figure]:
    """Of ``everything_served FOLDER 6``."""
    whole: dict[str, Any] = {}
    for line in lines:
        whole |= line
    masks = f"median; {whole['masks']} masks of {whole['points']} points"
    yield faster("upload and encoding", whole["upload_and_encode"]["median"], detail="median")
    yield faster("everything of an encoded image", whole["everything_of_an_encoded_image"]["median"], detail=masks)
    yield faster("upload, encoding and everything", whole["everything_with_upload"]["median"], detail=masks)
    singles = f"{whole['clients']} clients, one request for each point, three masks, RLE"
    yield faster("as many points as single clicks", whole["all_points"], detail=singles)


def video(lines: Lines) -> Iterator[Figure]:
    """Of ``video_device FOLDER objects videos clicks transformers``."""
    for line in lines:
        if "transformers" in line:
            name = f"transformers, a frame with {_objects(line['objects'])}"
            yield faster(name, line["frame_ms"], detail=str(line["transformers"]))
        elif "objects" in line and "frame_ms" in line:
            name = f"a frame with {_objects(line['objects'])}"
            yield Figure(name, line["frame_ms"], "ms", line["bar_ms"], better="lower")
        elif "videos" in line:
            name = f"frames a second of {line['videos']} videos"
            yield Figure(name, line["frames_a_second"], "frames/s", least=line["bar"], detail="one object each")
        elif "clicks_beside" in line:
            names = {"nothing": "click alone", "1 videos with 5 objects": "click beside a video with 5 objects"}
            if line["clicks_beside"] in names:
                yield percentiles(names[line["clicks_beside"]], line["click_ms"])


def _objects(count: int) -> str:
    return "1 object" if count == 1 else f"{count} objects"


def words(lines: Lines) -> Iterator[Figure]:
    """Of ``concepts_device FOLDER``; its parts fail alone, so each figure that the page shows must be there."""
    reference = {
        "transformers: all": "transformers, new image, new text",
        "transformers: text and detector": "transformers, new text",
    }
    bare = ("new image, new text", "new text", "known text", "four known texts")
    found: dict[str, Figure] = {}
    for line in lines:
        if line.get("bare") in reference:
            name = reference[line["bare"]]
            found[name] = percentiles(name, line["ms"], "eager, bfloat16")
        elif line.get("bare") in bare:
            found[line["bare"]] = percentiles(line["bare"], line["ms"], "the engine alone")
        elif "served" in line and "steps_ms" in line and line["served"] in bare:
            name = f"served: {line['served']}, masks {line['masks']}"
            found[name] = replace(percentiles(name, line["ms"]), bar=line.get("bar_ms"))
            if line["masks"] == MEMORY:
                name = f"served: {line['served']}, the server's own time"
                found[name] = faster(name, line["steps_ms"]["total"], detail="median")
        elif line.get("served") == "click":
            name = f"click, server {line['server']}"
            found[name] = percentiles(name, line["ms"], "packed bits")
        elif "server_with_words_mib" in line:
            name = "GPU memory of the server with words"
            found[name] = faster(name, round(line["server_with_words_mib"] / 1024, 2), "GiB")
    ways = {f"served: {what}, masks {way}" for what in bare[:3] for way in (HTTP, MEMORY)}
    if missing := {*reference.values(), *bare, *ways} - found.keys():
        raise ValueError(f"not measured: {', '.join(sorted(missing))}")
    yield from found.values()


_BASE = {"model": "sam2.1:base_plus", "weights": "random"}
_LARGE = (1536, 1024)
_CLICKS = _BASE | {"image": "coffee.png as a JPEG of 1536 x 1024 px"}
PARTS: dict[str, Part] = {
    "clicks": Part(
        "starts, images, clicks, and crowds of both, in one process and in six",
        "gpu.json",
        ("-m", "benchmarks.device_scale", "{folder}/clicks", "0", str(_PROCESSES)),
        clicks,
        _CLICKS,
        picture=_LARGE,
        seconds=540,
        first_start=True,
    ),
    "service": Part(
        "clicks through four processes of the service",
        "gpu_service.json",
        ("-m", "benchmarks.service_scale", "{folder}/clicks", "4"),
        service,
        _CLICKS,
        picture=_LARGE,
        environment={"TRITON_SAM_PROCESSES": str(_PROCESSES), "SCALE_FORMS": "rle,bits"},
        home="clicks",
    ),
    "kills": Part(
        "a worker killed while people click",
        "gpu_kills.json",
        ("-m", "benchmarks.device_kills", "{folder}/clicks", str(_PROCESSES), "30"),
        kills,
        _CLICKS,
        picture=_LARGE,
        home="clicks",
    ),
    "everything": Part(
        "everything in a photograph",
        "gpu_everything.json",
        ("-m", "benchmarks.everything_served", "{folder}/everything", str(_PROCESSES)),
        everything,
        {"model": "sam2:tiny", "weights": "given", "image": "coffee.png as a JPEG of 1536 x 1024 px"},
        repository="everything",
        real_weights=True,
    ),
    "video": Part(
        "objects through videos, and transformers'",
        "gpu_video.json",
        ("-m", "benchmarks.video_device", "{folder}/video", "objects", "videos", "clicks", "transformers"),
        video,
        _BASE | {"image": "JPEG frames of 1280 x 720 px"},
        seconds=540,
    ),
    "words": Part(
        "texts, and transformers'",
        "gpu_words.json",
        ("-m", "benchmarks.concepts_device", "{folder}/words"),
        words,
        {"model": "sam3:full", "weights": "random", "image": "coffee.png as a JPEG of 1024 x 1024 px, 30 instances"},
        picture=(1024, 1024),
        seconds=540,
        environment={"TRITON_SAM_ENCODE_BATCH": "1"},  # concepts_steps compiles for one image at a time
    ),
    "half-precision": Part(
        "masks in half precision against float32",
        "gpu_half_precision.json",
        (
            *("-m", "benchmarks", "half-precision", "--checkpoint", "{checkpoint}", "--output", "{file}"),
            *("--folder", "{folder}/photographs"),
        ),
        real_weights=True,
        writes_file=True,
    ),
    "vlm": Part(
        "LLaVA 7B with random weights, and transformers'",
        "gpu_vlm.json",
        ("-m", "benchmarks", "vlm", "--random-llava", "{folder}/llava", "--rounds", "7", "--output", "{file}"),
        seconds=560,
        writes_file=True,
    ),
}
