"""Generated parts of the documentation with results: tables of what docs/data/*.json records.

`scripts/generate_docs.py` writes them into the pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from docs_figures import DATA, document, figures, find, machine, shown

from triton_sam.bench.report import markdown

#: Written by `make test-all`.
TEST_RECORD = DATA / "test_record.json"


def exports_table() -> str:
    """The latest full-size run of `python -m benchmarks exports`."""
    rows = [
        "| id | export | memory, exporting | opset | encoder + decoder | largest difference, share of the deviation |",
        "|---|---|---|---|---|---|",
    ]
    for model_id, row in document("exports")["figures"].items():
        files = row["files_mb"]
        encoder = sum(size for name, size in files.items() if name.startswith("encoder"))
        rows.append(
            f"| `{model_id}` | {row['seconds']:.0f} s | {row['export_gib']:.1f} GiB | {row['opset']} | "
            f"{encoder:.0f} + {files['decoder.onnx']:.0f} MB | {max(row['worst_share'].values()):.0e} |"
        )
    return "\n".join(rows) + "\n"


def words_table() -> str:
    """The same run: what finding words takes on a CPU."""
    rows = [
        "| id | text encoder + detector | loading | an image | a new text | a known text | memory, serving words |",
        "|---|---|---|---|---|---|---|",
    ]
    for model_id, row in document("exports")["figures"].items():
        if "words" in row:
            words, files = row["words"], row["files_mb"]
            rows.append(
                f"| `{model_id}` | {files['text_encoder.onnx']:.0f} + {files['detector.onnx']:.0f} MB | "
                f"{words['load_s']:.1f} s | {words['image_s']:.2g} s | {words['new_text_s']:.2g} s | "
                f"{words['known_text_s']:.2g} s | {words['serve_gib']:.1f} GiB |"
            )
    return "\n".join(rows) + "\n"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table of results.

    Attributes:
        file, figure: where the figure stands in docs/data.
        against: (name, figure of the same file) of what it is compared with.
        percent: whether a share is shown as one.
    """

    what: str
    file: str
    figure: str
    against: Sequence[tuple[str, str]] = ()
    percent: bool = False


_B = "(b) this server, HTTP"
CPU_ROWS = (
    Row("start until it serves, model installed", "server", "start until ready"),
    Row(
        "new image, until clicks can be made",
        "compare",
        f"encode, {_B}",
        (("two stages", "encode, (c) two stages, HTTP"), ("transformers", "encode, (d) transformers, eager")),
    ),
    Row(
        "click on it, mask as RLE",
        "compare",
        f"click, {_B}",
        (("two stages", "click, (c) two stages, HTTP"), ("transformers", "click, (d) transformers, eager")),
    ),
    Row("new image, served / ONNX Runtime alone", "server", "served encode / bare encode"),
    Row("click, more than ONNX Runtime alone, packed bits", "server", "click minus bare decode, packed bits, HTTP"),
    Row("click while an image is encoded / click alone", "server", "click during an encode / click alone"),
    Row("click as RLE, request and answer", "server", "RLE click on the wire"),
    Row("one more prompt in the same request", "click", "cost of one more prompt"),
    Row("clicks, 8 clients", "throughput", "clicks a second, 8 clients"),
    Row("click through the service, more than at Triton's port", "service", "service minus direct Triton, click"),
    Row("page, mouse to drawn mask, without the server", "page", "hover minus server time, one move at a time"),
    Row(
        "the same, a mouse that moves 60 times a second",
        "page",
        "hover minus server time, a mouse that moves 60 times a second",
    ),
    Row("files of the page, before compression", "page", "weight of the page"),
    Row("hovers of 20 pointers that are computed at all", "hover", "executed / requested, HTTP", percent=True),
    Row("last hover of each of 20 pointers, p95", "hover", "last hover p95, HTTP"),
    Row("frame of a video, one object, sam2.1:tiny at 512 px", "video_cpu", "served frame, 1 object"),
    Row("the same / transformers", "video_cpu", "served frame / transformers, 1 object"),
    Row("five objects / transformers", "video_cpu", "served frame / transformers, 5 objects"),
    Row("`setup --fast`: encoder / plain encoder", "cpu_encoder", "fast encoder / plain encoder"),
    Row("its masks against the plain encoder's, mean IoU", "cpu_encoder", "mask IoU, mean"),
    Row("memory of one more cached image", "memory", "memory of one more cached image"),
    Row("memory growth over 60 images, cache full", "memory", "memory growth over the last 60 images"),
    Row("right mask after `kill -9` of the model", "server", "right masks after kill -9 of the model's process"),
)
GPU_ROWS = (
    Row("first start until it serves, 4 processes", "gpu", "first start until it serves"),
    Row("first start until full speed: it compiles, 4 processes", "gpu", "first start until full speed"),
    Row("later start until it serves, one process", "gpu", "later start until it serves"),
    Row("later start until full speed, one process", "gpu", "later start until full speed"),
    Row("new image, until clicks can be made", "gpu", "new image, one process"),
    Row("click on it, packed bits", "gpu", "click, one process"),
    Row("image and ten clicks, one after the other", "gpu", "image and ten clicks, one process"),
    Row("clicks, 64 clients, 6 processes", "gpu", "clicks a second, 64 clients, 6 processes"),
    Row("images, 16 clients, 6 processes", "gpu", "images a second, 16 clients, 6 processes"),
    Row(
        "clicks through the service, 64 clients, 6 + 4 processes",
        "gpu_service",
        "clicks a second through the service, 64 clients, rle",
    ),
    Row(
        "everything with upload, 1,024 points, sam2:tiny",
        "gpu_everything",
        "upload, encoding and everything",
        (("one request a point", "as many points as single clicks"),),
    ),
    *(
        Row(
            f"frame of a video, {many}",
            "gpu_video",
            f"a frame with {many}",
            (("transformers", f"transformers, a frame with {many}"),),
        )
        for many in ("1 object", "5 objects", "16 objects")
    ),
    Row("8 videos with one object each", "gpu_video", "frames a second of 8 videos"),
    Row(
        "click beside a video with 5 objects",
        "gpu_video",
        "click beside a video with 5 objects",
        (("alone", "click alone"),),
    ),
    *(
        Row(
            f"{what}, sam3:full, 30 masks",
            "gpu_words",
            f"served: {name}, masks over HTTP",
            (
                ("masks in memory", f"served: {name}, masks in memory"),
                ("engine alone", name),
                *((("transformers", f"transformers, {name}"),) if name != "known text" else ()),
            ),
        )
        for what, name in (
            ("new text on a new image of 1024 x 1024 px", "new image, new text"),
            ("new text on a known image", "new text"),
            ("known text on a known image", "known text"),
        )
    ),
    *(
        Row(
            f"LLaVA 7B, {name} at a time",
            "gpu_vlm",
            f"llava, batch {count}: served, rate",
            (("transformers", f"llava, batch {count}: bare transformers, rate"),),
        )
        for count, name in ((1, "one question"), (8, "8 questions"))
    ),
    Row(
        "masks in float16 against float32, mean IoU, sam2:tiny",
        "gpu_half_precision",
        "mask IoU, float16 throughout, mean",
    ),
    Row("killed worker serves again", "gpu_kills", "a killed worker serves again"),
)
#: What the README shows: a row for both kinds of machine.
README_ROWS = (
    ("start until it serves, model installed", ("server", "start until ready"), ("gpu", "later start until it serves")),
    ("new image, until clicks can be made", ("compare", f"encode, {_B}"), ("gpu", "new image, one process")),
    ("click", ("compare", f"click, {_B}"), ("gpu", "click, one process")),
    ("the same click in two stages", ("compare", "click, (c) two stages, HTTP"), None),
    ("clicks a second, 64 clients", None, ("gpu", "clicks a second, 64 clients, 6 processes")),
    ("everything, 1,024 points, SAM 2 tiny", None, ("gpu_everything", "upload, encoding and everything")),
    (
        "frame of a video, one object (two cores: SAM 2.1 tiny at 512 px)",
        ("video_cpu", "served frame, 1 object"),
        ("gpu_video", "a frame with 1 object"),
    ),
    (
        "right masks after a kill of the model's process",
        ("server", "right masks after kill -9 of the model's process"),
        ("gpu_kills", "a killed worker serves again"),
    ),
)


def readme_table() -> str:
    """The most important figures of both kinds of machine."""
    lines = ["| | two CPU cores, SAM 2 tiny | one H200, SAM 2.1 base_plus |", "|---|---|---|"]
    for what, *places in README_ROWS:
        cells = ["" if place is None else shown(find(*place)) for place in places]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def results_table(rows: Sequence[Row]) -> str:
    """What, how much, compared with what, and by which command; below it where each figure was measured."""
    lines = ["| what | measured | for comparison | must be | figures |", "|---|---|---|---|---|"]
    for row in rows:
        figure = find(row.file, row.figure)
        value = f"{100 * figure.value:.3g} %" if row.percent else shown(figure)
        against = ", ".join(f"{name} {shown(find(row.file, other))}" for name, other in row.against)
        limit = shown(figure, bar=True) + ("" if figure.reached else ", missed")
        lines.append(f"| {row.what} | {value} | {against} | {limit} | [{row.file}]({_link(row.file)}) |")
    files = list(dict.fromkeys(row.file for row in rows))
    lines += ["", "| figures | command | commit, date |", "|---|---|---|"]
    for file in files:
        head = document(file)
        command = re.sub(r" --output \S+", "", head["command"])
        commit, _, note = str(head["commit"]).partition(" ")
        when = f"`{commit}`{' (added the figures)' if note else ''}, {head['date'][:10]}"
        lines.append(f"| [{file}]({_link(file)}) | `{command}` | {when} |")
    machines: dict[str, list[str]] = {}
    for file in files:
        machines.setdefault(machine(file), []).append(file)
    lines += ["", *(f"- {name}: {', '.join(on_it)}" for name, on_it in machines.items())]
    return "\n".join(lines) + "\n"


def _link(file: str) -> str:
    return f"../data/{file}.json"


def tuning_table() -> str:
    """The latest recorded run of `python -m benchmarks tuning`."""
    return _recorded("tuning")


def test_record_table() -> str:
    """The latest run of each part of the long suite."""
    rows = ["| part | what it holds | date | commit | machine | minutes | result |", "|---|---|---|---|---|---|---|"]
    for name, row in json.loads(TEST_RECORD.read_text()).items():
        result = f"{row['tests']} passed" + (f", {len(row['failed'])} failed" if row["failed"] else "")
        if row["skipped"]:
            reasons = "; ".join(f"{count}: {reason}" for reason, count in row["skipped"].items())
            result += f", {sum(row['skipped'].values())} skipped ({reasons})"
        rows.append(
            f"| `{name}` | {row['about']} | {row['date']} | `{row['commit']}` | {row['machine']} | "
            f"{row['minutes']} | {result} |"
        )
    return "\n".join(rows) + "\n"


def _recorded(file: str) -> str:
    return markdown(figures(file), document(file)["machine"])


#: The parts by the names that the pages use.
PARTS: dict[str, Callable[[], str]] = {
    "exports": exports_table,
    "words": words_table,
    "readme": readme_table,
    "results_cpu": lambda: results_table(CPU_ROWS),
    "results_gpu": lambda: results_table(GPU_ROWS),
    "tuning": tuning_table,
    "test_record": test_record_table,
}
