"""Objects through videos on a GPU, served end to end: milliseconds a frame, many videos, clicks beside them, memory.

usage: python -m benchmarks.video_device FOLDER [PART ...] [options]

FOLDER as for ``benchmarks.device_scale``: a model repository with one segmenter with a memory, whose weights may be
missing (``set_up_random`` writes one; its weights may be left behind). Frames are JPEG files in, run lengths out, sent
by a client in its own process with several frames under way, and counted once the memory is full. Parts:

  ready        starts the server, waits for full speed and ends it: compiled code is kept for later runs
  objects      one video with so many objects
  client       the same through SAM2VideoClient, which also keeps the video's state
  videos       several videos at once, one object each
  clicks       clicks on an image, alone and beside a video
  transformers its session, eager bfloat16, with the same weights; frames are on the GPU already, masks stay there
  bare         the engine alone, in this process: an encode, and tracking of so many objects
  growth       memory of the server's processes and of the GPU through a long video

Figures are printed as JSON, one line each, in milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.device_scale import MODEL, Server, User, cpu_seconds, milliseconds, say, timed
from benchmarks.video_film import Order, places, renumbered
from benchmarks.video_weights import make_video_weights, spec_in
from triton_sam.bench.machine import gpu_bytes
from triton_sam.bench.pictures import Pictures, fresh_numbers

_IMAGE = Path(__file__).parents[1] / "docs" / "images" / "coffee.png"
_DIFFERENT = 24
_WINDOW = 4
#: (part of the model's id, objects) -> milliseconds a frame at most.
BARS = {("base_plus", 1): 9.0, ("base_plus", 5): 16.0, ("base_plus", 16): 36.0, ("tiny", 1): 7.0}
#: Frames a second of eight videos at least.
VIDEOS_BAR = 180.0
GROWTH_BAR_MB = 50.0
PARTS = ("ready", "objects", "client", "videos", "clicks", "transformers", "bare", "growth")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--image", type=Path, default=_IMAGE)
    parser.add_argument("--size", type=int, nargs=2, default=(1280, 720))
    parser.add_argument("--objects", type=int, nargs="+", default=(1, 5, 16))
    parser.add_argument("--videos", type=int, nargs="+", default=(8,))
    parser.add_argument("--warm", type=int, default=24, help="frames that fill the memory before others are counted")
    parser.add_argument("--frames", type=int, default=200, help="that are counted, of each video")
    parser.add_argument("--clicks", type=int, default=300, help="of each kind")
    parser.add_argument("--long", type=int, default=10_000, help="frames of the part growth")
    parser.add_argument("--state-every", type=int, default=30, help="of the client, in frames")
    parser.add_argument("--window", type=int, default=_WINDOW, help="steps that are under way at once")
    parser.add_argument("--processes", type=int, default=1, help="of the segmenter; 0: one, without a worker")
    parser.add_argument("--wait", type=float, default=400.0, help="how long full speed may take, in seconds")
    given = parser.parse_args()
    parts = given.parts or PARTS[1:]
    make_video_weights(given.folder)
    served = [part for part in parts if part not in ("transformers", "bare")]
    with tempfile.TemporaryDirectory() as name:
        frames = Path(name)
        about = write_frames(frames, given.image, tuple(given.size))
        if served:
            server = Server(given.folder, given.processes)
            try:
                ready, full = server.wait_ready(), server.wait_full_speed(given.wait)
                model = spec_in(given.folder).id
                say(folder=given.folder.name, model=model, frames=about, ready_s=round(ready, 1), full_speed_s=full)
                for part in served:
                    _SERVED[part](server, frames, given)
            finally:
                server.stop()
        for part in ("transformers", "bare"):
            if part in parts:
                # A process of its own: the memory of one would be missing to the other.
                command = [sys.executable, "-m", "benchmarks.video_bare", part, str(given.folder), str(frames)]
                subprocess.run([*command, *map(str, given.objects)], check=True)


def write_frames(folder: Path, image: Path, size: tuple[int, int]) -> str:
    """Writes a pan over a photograph as JPEG files of this size; returns what they are."""
    width, height = size
    with Image.open(image) as opened:
        wide = opened.convert("RGB").resize((width * 5 // 4, height * 5 // 4), Image.Resampling.BICUBIC)
    total = 0
    for number in range(_DIFFERENT):
        share = abs(2 * number / _DIFFERENT - 1)
        x, y = int(share * (wide.width - width)), int(share * (wide.height - height))
        plain = folder / "plain"
        wide.crop((x, y, x + width, y + height)).save(plain, "JPEG", quality=90)
        data = Pictures(plain).jpeg()
        plain.unlink()
        (folder / f"{number:03}.jpg").write_bytes(data)
        total += len(data)
    return f"{width} x {height} px, JPEG of {total / _DIFFERENT / 1e3:.0f} kB"


class Process:
    """A video in a process of its own."""

    def __init__(self, order: Order) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.video_film"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._write(json.dumps(asdict(order)))

    def read(self) -> dict[str, Any]:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a video ended with code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def begin(self) -> None:
        self._write("")

    def kill(self) -> None:
        """Ends it in the middle; the server forgets its session after a while."""
        self._process.kill()

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        self._process.communicate()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


@contextlib.contextmanager
def films(server: Server, folder: Path, given: argparse.Namespace, count: int = 1, **fields: Any) -> Iterator[Any]:
    """Videos with full memories that wait for :meth:`Process.begin`."""
    width, height = given.size
    settings = {"window": given.window, "frames": given.frames, "warm": given.warm} | fields
    made = []
    try:
        for number in range(count):
            name = f"film {number} {time.monotonic_ns()}"
            made.append(Process(Order(server.port, MODEL, name, str(folder), width, height, **settings)))
        for film in made:
            film.read()
        yield made
    finally:
        for film in made:
            film.close()


def objects(server: Server, frames: Path, given: argparse.Namespace) -> None:
    """One video with so many objects."""
    for count in given.objects:
        with films(server, frames, given, objects=count) as (film,):
            before = cpu_seconds()
            film.begin()
            figures = film.read()
            after = cpu_seconds()
        each = (figures["at"][-1] - figures["begun"]) / given.frames
        gaps = [later - earlier for earlier, later in pairwise(figures["at"])]
        bar = _bar(given.folder, count)
        say(
            objects=count,
            frame_ms=round(1e3 * each, 2),
            bar_ms=bar,
            met=None if bar is None else 1e3 * each <= bar,
            gap_ms=milliseconds(gaps),
            there=figures["there"],
            rle_bytes=figures["rle_bytes"],
            server_steps_ms=figures["steps"],
            cpu_ms_a_frame=_cpu(before, after, given.frames),
        )


def client(server: Server, frames: Path, given: argparse.Namespace) -> None:
    """One video through the client; with many objects, states come only every few hundred frames."""
    from triton_sam import SAM2VideoClient  # its dependencies may be missing here

    pictures, numbers = [path.read_bytes() for path in sorted(frames.glob("*.jpg"))], fresh_numbers()
    address, options = f"127.0.0.1:{server.port}", {"in_flight": given.window, "state_every": given.state_every}
    with SAM2VideoClient(address, MODEL, **options) as opened:
        for count in given.objects:
            with tempfile.TemporaryDirectory() as name:
                for frame in range(given.warm + given.frames):
                    data = renumbered(pictures[frame % len(pictures)], next(numbers))
                    (Path(name) / f"{frame:05}.jpg").write_bytes(data)
                state = opened.init_state(name)
                for number, (x, y) in enumerate(places(count, *given.size)):
                    opened.add_new_points_or_box(state, 0, number, [[x, y]], [1])
                at, states, newest = [], [], state.session.checkpoint
                for found in opened.track_frames(state):
                    at.append(time.monotonic())
                    if state.session.checkpoint is not newest:
                        newest = state.session.checkpoint
                        states.append(found.index)
                opened.close_state(state)
            gaps = [later - earlier for earlier, later in pairwise(at[given.warm - 1 :])]
            slowest = sorted(range(len(gaps)), key=gaps.__getitem__)[-5:]
            bar, taken = _bar(given.folder, count), 1e3 * sum(gaps) / len(gaps)
            say(
                objects=count,
                client_frame_ms=round(taken, 2),
                bar=bar,
                met=None if bar is None else taken <= bar,
                gap_ms=milliseconds(gaps),
                slowest_ms={number + given.warm: round(1e3 * gaps[number], 1) for number in slowest},
                states_at=states,
                state_mb=None if newest is None else round(len(newest.data) / 1e6, 1),
            )


def videos(server: Server, frames: Path, given: argparse.Namespace) -> None:
    """Several videos at once, one object each."""
    for count in given.videos:
        with films(server, frames, given, count) as made:
            before = cpu_seconds()
            for film in made:
                film.begin()
            found = [film.read() for film in made]
            after = cpu_seconds()
        rate = rate_of([one["at"] for one in found])
        say(
            videos=count,
            frames_a_second=round(rate, 1),
            bar=VIDEOS_BAR if count == 8 else None,
            met=rate >= VIDEOS_BAR if count == 8 else None,
            server_steps_ms=found[0]["steps"],
            cpu_ms_a_frame=_cpu(before, after, given.frames * count),
        )


def rate_of(at: Sequence[Sequence[float]]) -> float:
    """Frames a second of all videos while all of them run.

    Args:
        at: seconds of each answer, by video.
    """
    begin, end = max(times[0] for times in at), min(times[-1] for times in at)
    return sum(begin < moment <= end for times in at for moment in times) / (end - begin)


def clicks(server: Server, frames: Path, given: argparse.Namespace) -> None:
    """Clicks on an image, alone and beside a video, and beside many."""
    pictures = Pictures(next(iter(sorted(frames.glob("*.jpg")))))
    with contextlib.closing(User(server, pictures)) as user:
        key = user.new_image()
        timed(lambda number: user.click(key, number), 50)
        taken = timed(lambda number: user.click(key, number), given.clicks)
        say(clicks_beside="nothing", click_ms=milliseconds(taken))
        for count, many in ((1, 1), (1, 5), (max(given.videos), 1)):
            with films(server, frames, given, count, objects=many, frames=100_000, told_every=20) as made:
                for film in made:
                    film.begin()
                for film in made:  # it runs
                    film.read()
                taken = timed(lambda number: user.click(key, number), given.clicks)
                for film in made:
                    film.kill()
            say(clicks_beside=f"{count} videos with {many} objects", click_ms=milliseconds(taken))


def growth(server: Server, frames: Path, given: argparse.Namespace) -> None:
    """Memory through a long video, from its 100th frame."""
    seen: dict[int, dict[str, float]] = {}
    with films(server, frames, given, objects=1, warm=100, frames=given.long - 100, told_every=100) as (film,):
        seen[100] = memory(server)
        film.begin()
        begun = time.monotonic()
        while "frames" in (told := film.read()):
            seen[told["frames"]] = memory(server)
        spent = time.monotonic() - begun
    first, last = seen[100], seen[max(seen)]
    grown = {name: round(last[name] - first[name], 1) for name in first}
    say(
        long=max(seen),
        grown_mb=grown,
        bar_mb=GROWTH_BAR_MB,
        met=max(grown["server"], grown.get("gpu", 0.0)) <= GROWTH_BAR_MB,
        most_mb={name: round(max(one[name] for one in seen.values()), 1) for name in first},
        at={number: seen[number] for number in sorted(seen) if number in (100, 200, 500, 1000, 2000, 5000)},
        last=last,
        frame_ms=round(1e3 * spent / (given.long - 100), 2),
    )


def memory(server: Server) -> dict[str, float]:
    """Megabytes of anonymous memory of the server's processes, of shared memory, and of the GPU."""
    used = {"server": sum(map(_anonymous, _tree(server.process.pid))) / 1e6}
    used["shared"] = sum(path.stat().st_blocks * 512 for path in Path("/dev/shm").glob("*") if path.is_file()) / 1e6
    on_gpu = gpu_bytes()
    if on_gpu is not None:
        used["gpu"] = on_gpu / 1e6
    return {name: round(value, 1) for name, value in used.items()}


def _tree(root: int) -> list[int]:
    """A process and all that it has started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _anonymous(pid: int) -> int:
    from triton_sam.server.metrics_reader import resident_bytes

    with contextlib.suppress(OSError, KeyError):  # it has ended
        return resident_bytes(pid)
    return 0


def _cpu(before: dict[str, float], after: dict[str, float], frames: int) -> dict[str, float]:
    return {name: round(1e3 * (spent - before.get(name, 0.0)) / frames, 2) for name, spent in after.items()}


def _bar(folder: Path, count: int) -> float | None:
    found = spec_in(folder)
    return BARS.get((found.id.partition(":")[2], count)) if found.side == 1024 else None


_SERVED = {
    "ready": lambda *_: None,
    "objects": objects,
    "client": client,
    "videos": videos,
    "clicks": clicks,
    "growth": growth,
}


if __name__ == "__main__":
    main()
