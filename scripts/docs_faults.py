"""The table of docs/how/reliability.md, of what parts of `make test-all` recorded in docs/data/faults."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from docs_figures import document


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of the table.

    Attributes:
        seen: by somebody who uses the server.
        file: in docs/data/faults.
        figures: (words, with ``{}`` for the value, figure of the file).
    """

    what: str
    seen: str
    file: str
    figures: Sequence[tuple[str, str]]


_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TOLD, _BACK = "told, s (worst)", "back, s (worst)"
_OFF = "health off, s (worst)"
_CROWD = (
    ("{} without an answer", "without an answer"),
    ("refused in {} ms (p99)", "refusals p99, ms"),
    ("`/health` in {} ms (p99)", "/health p99, ms"),
    ("admitted in {} of the limit (p99)", "the same as a share of the bar, alone"),
)
_REFUSED = "429 with `Retry-After` at once; admitted requests wait for the queue before them"
FAULTS = (
    Fault(
        "kill -9 of a model's idle process",
        "`/health` is 503 until the model is loaded again",
        "kill-idle",
        (("`/health` is 503 after {} s", _OFF), ("back after {} s", _BACK)),
    ),
    Fault(
        "the same, with a click and an image at that moment",
        "503 at once",
        "kill-asked",
        (("503 after {} s", _TOLD), ("back after {} s", _BACK)),
    ),
    Fault(
        "the same, with 4 requests in flight",
        "503 at once, then a restart of Triton",
        "kill-in-flight",
        (("503 after {} s", _TOLD), ("back after {} s", _BACK)),
    ),
    Fault(
        "kill -9 of tritonserver under load",
        "503 until it is back",
        "kill-server",
        (("`/health` is 503 after {} s", _OFF), ("back after {} s", _BACK)),
    ),
    Fault(
        "a model's process is stopped for 3 s (SIGSTOP, SIGCONT), under load",
        "503, then a restart of Triton",
        "stop-stub",
        (
            ("slowest answer {} s", "slowest answer, s"),
            ("connections reset: {}", "connections reset"),
            ("right mask after {} s", "right mask after SIGCONT, s"),
        ),
    ),
    Fault(
        "kill -9 of an idle one of three Triton processes",
        "`/health` is 503 until all are loaded again",
        "processes/kill-idle",
        (("`/health` is 503 after {} s", _OFF), ("back after {} s", _BACK)),
    ),
    Fault(
        "the same, with 4 requests in flight, on a busy machine",
        "503 at once, then a restart of Triton",
        "processes/kill-in-flight",
        (("503 after {} s", _TOLD), ("back after {} s", _BACK)),
    ),
    Fault(
        "kill -9 of one of two workers every 5 s",
        "one clear error for its requests; the other worker serves",
        "devices-kills",
        (
            ("wrong answers: {}", "wrong, unclear or missing answers"),
            ("both serve again after {} s", "both devices again, s (worst)"),
            ("restarts of Triton: {}", "restarts of Triton"),
        ),
    ),
    Fault(
        "one of two workers hangs (SIGSTOP)",
        "its requests wait half a minute, then get one clear error",
        "devices-hang",
        (
            ("wrong answers: {}", "wrong, unclear or missing answers"),
            ("slowest answer {} s", "slowest answer, s"),
            ("restarts of Triton: {}", "restarts of Triton"),
        ),
    ),
    Fault(
        "SIGTERM with 20 requests in flight",
        "all of them are answered, new ones are refused",
        "drain-service",
        (("answered: {}", "finished"), ("ends after {} s", "exit after, s")),
    ),
    Fault(
        "one of two servers behind HAProxy is killed",
        "404 `image_expired`: send the image again",
        "two_servers",
        (
            ("broken connections: {}", "connections broken, other answers"),
            ("out of use after {} s", "dead server out of use, s after the kill"),
            ("in use {} s after it is healthy", "its share of requests back after it is healthy, s"),
        ),
    ),
    Fault("ten times the clicks it can answer", _REFUSED, "overload-clicks", _CROWD),
    Fault("the same, the model on one of two cores", _REFUSED, "overload-clicks-cores-left", _CROWD),
    Fault("ten times the images it can encode", _REFUSED, "overload-uploads", _CROWD),
    Fault("ten times the clicks, 16 cores", _REFUSED, "overload-16-cores-clicks", _CROWD),
    Fault("ten clicks in the time of one, H200", _REFUSED, "overload-gpu", _CROWD),
    Fault("ten images in the time of one, H200", _REFUSED, "overload-gpu-uploads", _CROWD),
    Fault(
        "20 minutes of mixed load with 4 kills",
        "503 while it comes back, 404 `image_expired` after it",
        "soak",
        (
            ("unexplained errors: {}", "errors that nothing explains"),
            ("masks that differ: {}", "masks that differ"),
            ("the model grows by {} MB", "stub: growth in 1200 s at that pace, MB"),
        ),
    ),
    Fault(
        "16 clients and 16 images, a cache for 6",
        "404 `image_expired` for an image that was dropped",
        "no_mixing",
        (
            ("masks of another image: {}", "masks of another image"),
            ("IoU with the mask made alone {}", "smallest IoU with the mask made alone"),
        ),
    ),
    Fault(
        "hostile requests to every route",
        "4xx with a code",
        "hostile",
        (
            ("slowest refusal {} s", "slowest refusal, seconds"),
            ("5xx: {}", "5xx"),
            ("the same processes serve: {}", "the same processes, and none mended"),
        ),
    ),
    Fault(
        "10,000 mutated requests",
        "4xx with a code",
        "mutations",
        (
            ("slowest refusal {} s", "slowest refusal, seconds"),
            ("the same processes serve: {}", "the same processes, and none mended"),
        ),
    ),
    Fault(
        "1,000 mutated messages on the hover socket",
        "a message with a code; the socket stays open",
        "mutations_hover",
        (
            ("answered: {}", "messages, each with its answer"),
            ("next mask right: {}", "the socket is open, and the next mask right"),
        ),
    ),
    Fault(
        "the disk fills during a download",
        "one sentence with the fix; the same command goes on later",
        "full_disk_later",
        (("said so: {}", "told by one sentence with the mend"),),
    ),
    Fault(
        "the disk fills during a set-up",
        "one sentence with the fix",
        "full_disk_setup",
        (("files of half a model left: {}", "files left of half a model"),),
    ),
    Fault(
        "`/dev/shm` is full",
        "503 with the fix for a request that is too large",
        "full_shm_later",
        (("restarts: {}", "restarts"),),
    ),
    Fault(
        "a port is taken",
        "the start ends with one sentence and the fix",
        "taken_ports",
        (("ports tried: {}", "starts ended by one sentence with the mend"),),
    ),
    Fault(
        "damaged models in the repository",
        "the others serve; `/health` names each and why",
        "damaged_models",
        (
            ("named: {}", "models told of by one sentence with the mend"),
            ("the whole one serves: {}", "the whole one serves, the mended one too"),
        ),
    ),
)


def faults_table() -> str:
    """Fault by fault: what people see, what was measured, and what must hold."""
    lines = ["| fault or load | what people see | measured | must hold | measured by |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        found = document(f"faults/{fault.file}")
        known = {row["what"]: row for row in found["figures"]}
        measured, bars = [], []
        for words, name in fault.figures:
            value, bar = known[name]["value"], str(known[name]["bar"])
            limit = most(bar)
            missed = limit is not None and isinstance(value, int | float) and value > limit
            measured.append(words.format(_plain(value)) + (" **(missed)**" if missed else ""))
            if bar:
                bars.append(words.format(_plain(bar) if limit is None else f"≤ {limit:g}"))
        part = f"[{found['command'].rpartition('=')[2]}](../data/faults/{fault.file}.json)"
        lines.append(f"| {fault.what} | {fault.seen} | {'<br>'.join(measured)} | {'<br>'.join(bars)} | {part} |")
    return "\n".join(lines) + "\n"


def most(bar: str) -> float | None:
    """The number of a bar such as "<= 5 + 3.5 of start"; None if it is none."""
    return round(sum(map(float, _NUMBER.findall(bar))), 3) if bar.startswith("<= ") else None


def _plain(value: object) -> str:
    text = str(value)
    return {"True": "yes", "False": "no"}.get(text, text)


#: The parts by the names that the pages use.
PARTS: dict[str, Callable[[], str]] = {"faults": faults_table}
