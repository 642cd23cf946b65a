"""A worker killed again and again while people click: how long until its device serves, and whether all is answered.

usage: python -m benchmarks.device_kills FOLDER PROCESSES [SECONDS]

FOLDER as for ``benchmarks.device_scale``; ``TRITON_SAM_DEVICES=0,0`` gives two workers on one GPU. One worker is killed
every ``KILL_EVERY`` seconds (5), in turn. Each person clicks on an image of their own, and uploads it again if it is
lost. Every mask is compared with the first one of that click. Figures are printed as JSON; with
``TRITON_SAM_LOG_FORMAT=json`` also what the server logged after its start and after each kill, with seconds.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.device_scale import Server, User, make_weights, say
from benchmarks.start_timeline import timeline
from triton_sam.bench.pictures import Pictures
from triton_sam.server.worker_processes import worker_pids

PEOPLE = 8
EVERY_SECONDS = float(os.environ.get("KILL_EVERY", "5"))
#: Share of pixels by which a mask may differ from the first one of the same click.
_ROUNDING = 0.001


class Person:
    """Clicks until told to stop; counts what came back."""

    def __init__(self, server: Server, pictures: Pictures, stop: threading.Event) -> None:
        self._user = User(server, pictures)
        self._mask_bytes = pictures.height * ((pictures.width + 7) // 8)
        self._stop = stop
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        #: (when it was requested, when it came) of each mask that is right.
        self.right_at: list[tuple[float, float]] = []
        #: (moment, number of the click, share of its pixels that differ).
        self.wrong: list[tuple[float, int, float]] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        known: dict[int, bytes] = {}
        key, number = "", 0
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                key = key or self._user.new_image()
                mask = self._user.click(key, number % 10)[-self._mask_bytes :]
            except AssertionError as refused:  # a status other than 200, with its sentence
                self.errors[str(refused)[:160]] += 1
                self.outcomes["clear error" if b"error" in refused.args[0] else "other"] += 1
                key = ""
                self._stop.wait(0.02)
            except OSError as error:
                self.errors[repr(error)[:160]] += 1
                self.outcomes["no answer"] += 1
            else:
                # Another encode of the same pixels may run in a batch of another size, which rounds differently.
                # One large number each: byte by byte, eight threads would keep Python's lock from the one that kills.
                first = known.setdefault(number % 10, mask)
                differing = (int.from_bytes(mask, "big") ^ int.from_bytes(first, "big")).bit_count()
                share = differing / (8 * self._mask_bytes)
                self.outcomes["right" if share <= _ROUNDING else "wrong"] += 1
                if share > _ROUNDING:
                    self.wrong.append((time.monotonic(), number % 10, share))
                self.right_at.append((begun, time.monotonic()))
                number += 1


def workers(server: Server) -> list[int]:
    """Process numbers of the workers; a spare is none."""
    return sorted(worker_pids(server.process.pid))


def serving(server: Server, devices: int) -> bool:
    """Whether all devices serve, by the server's log: each loss is followed by a line that says it serves again."""
    told = server.log.read_text(errors="replace")
    return told.count("serves again") == told.count("was lost with") and len(workers(server)) == devices


def main(arguments: list[str]) -> None:
    folder, processes = Path(arguments[0]), int(arguments[1])
    seconds = float(arguments[2]) if len(arguments) > 2 else 60.0
    make_weights(folder)
    pictures = Pictures(Path(os.environ["SCALE_IMAGE"])) if "SCALE_IMAGE" in os.environ else Pictures()
    server = Server(folder, processes)
    stop = threading.Event()
    try:
        say(ready_s=round(server.wait_ready(), 1), full_speed_s=server.wait_full_speed())
        say(timeline_of_the_start=timeline(server.log, server.begun_at))
        devices = len(workers(server))
        people = [Person(server, pictures, stop) for _ in range(PEOPLE)]
        for person in people:
            person.thread.start()
        back, silent, kills = [], [], 0
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(EVERY_SECONDS)
            alive = workers(server)
            victim = alive[kills % len(alive)]
            killed, killed_at = time.monotonic(), time.time()
            os.kill(victim, signal.SIGKILL)
            kills += 1
            while time.monotonic() - killed < 60 and (victim in workers(server) or not serving(server, devices)):
                time.sleep(0.05)
            back.append(time.monotonic() - killed)
            first = min(
                (came for person in people for begun, came in person.right_at[-400:] if begun > killed), default=0
            )
            silent.append(max(0.0, first - killed))
            say(back_s=round(back[-1], 2), timeline_of_the_kill=timeline(server.log, killed_at))
        stop.set()
        for person in people:
            person.thread.join()
        outcomes = sum((person.outcomes for person in people), Counter[str]())
        errors = sum((person.errors for person in people), Counter[str]())
        say(
            devices=devices,
            kills=kills,
            outcomes=outcomes,
            back_s={"median": round(statistics.median(back), 2), "worst": round(max(back), 2)},
            until_next_right_mask_s={"median": round(statistics.median(silent), 2), "worst": round(max(silent), 2)},
            errors=errors.most_common(4),
            wrong=[
                {"seconds_after_kill": round(moment - killed, 2), "click": click, "share": round(share, 5)}
                for person in people
                for moment, click, share in person.wrong
            ][:20],
        )
    finally:
        stop.set()
        server.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
