"""Full disks, full shared memory, taken ports: one sentence that names the mend, and nothing half-written stays."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.faults.figures import record
from tests.faults.helpers import children_of
from tests.faults.serve_command import PORTS, wait_until_serving
from tests.faults.witness import png
from tests.waiting import eventually
from triton_sam.server.host import free_port
from triton_sam.settings import get_settings

pytestmark = [pytest.mark.triton, pytest.mark.part("faults"), pytest.mark.timeout(600)]
#: Seconds; a setup may have to make graphs first.
PATIENCE = 300.0


def command(*words: str, home: Path) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "triton_sam.cli", *words], os.environ | {"TRITON_SAM_HOME": str(home)}


def sentence(output: str) -> str:
    """The one line that tells what is wrong."""
    lines = [line for line in output.splitlines() if line.strip()]
    assert len(lines) == 1, output
    return lines[0]


def test_taken_ports(repository: Path, tmp_path: Path) -> None:
    """Each of the four ends the start with its name, its number and the option that mends it."""
    with socket.socket() as taken, contextlib.ExitStack() as ending:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        running = {}
        for name in PORTS:
            options = [f"--{other}-port={number if other == name else 0}" for other in PORTS]
            words, environment = command("serve", f"--model-repository={repository}", *options, home=tmp_path / name)
            running[name] = subprocess.Popen(
                words, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            ending.enter_context(running[name])
            ending.callback(running[name].kill)
        for name, process in running.items():
            _, output = process.communicate(timeout=PATIENCE)
            assert process.returncode == 1, output
            told = sentence(output)
            assert f"the {name} port {number} on 127.0.0.1 cannot be used" in told
            assert f"--{name}-port" in told
    record("taken_ports", "each of the four ports taken", {"starts ended by one sentence with the mend": (4, "4")})


# -- full file systems: small ones that only the command sees ------------------------------------------------------


@pytest.fixture(scope="module")
def namespaces() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("small file systems of a test's own need root and unshare")
    tried = subprocess.run(
        ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"], capture_output=True, timeout=PATIENCE
    )
    if tried.returncode:
        pytest.skip(f"mount namespaces are not allowed here: {tried.stderr.decode().strip()}")


def with_small(folder: Path, megabytes: int, words: list[str]) -> list[str]:
    """The command in a world where ``folder`` is an empty file system of so many megabytes; lists it at the end."""
    mount = f'mount -t tmpfs -o size={megabytes}m tmpfs "$0"'
    # The command ends before whoever waits for it gives up and ends the shell alone.
    script = (
        f'{mount} && timeout -k 5 {PATIENCE - 20:.0f} "$@"; code=$?; echo "left: $(ls -A "$0" | xargs)"; exit $code'
    )
    return ["unshare", "-m", "sh", "-c", script, str(folder), *words]


def run_in_small(folder: Path, megabytes: int, home: Path, *words: str) -> tuple[int, str, str]:
    """(exit code, the sentence, what was left in the folder)"""
    line, environment = command(*words, home=home)
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        with_small(folder, megabytes, line), env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    left = done.stdout.rpartition("left:")[2].strip()
    return done.returncode, sentence(done.stderr), left


@pytest.mark.also_part("faults-processes")
def test_no_room_in_shared_memory(namespaces: None, repository: Path, tmp_path: Path) -> None:
    ports = [f"--{name}-port=0" for name in PORTS]
    code, told, _ = run_in_small(Path("/dev/shm"), 8, tmp_path, "serve", f"--model-repository={repository}", *ports)
    assert code == 1
    assert "/dev/shm has 8 MB free" in told
    assert "--shm-size" in told
    record("full_shm", "no room in /dev/shm at the start", {"one sentence with the mend": ("yes", "yes")})


def write_for_ever(path: Path) -> None:
    """Until the file system has no room."""
    with path.open("wb") as file:
        while True:
            file.write(bytes(1 << 20))


@pytest.mark.also_part("faults-processes")
def test_shared_memory_that_fills_while_it_serves(namespaces: None, repository: Path, tmp_path: Path) -> None:
    """What needs more of it is refused with the mend, what does not is answered, and with room again all is."""
    ports = {name: free_port() for name in PORTS}
    options = [f"--{name}-port={port}" for name, port in ports.items()]
    words, environment = command("serve", f"--model-repository={repository}", *options, home=tmp_path)
    small_world = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=300m tmpfs /dev/shm && exec "$@"', "sh"]
    small, large = (png(Image.effect_noise((side, side), 90)) for side in (64, 2000))
    with (
        subprocess.Popen(
            [*small_world, *words], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{ports['service']}", timeout=PATIENCE, trust_env=False) as client,
    ):
        try:
            wait_until_serving(process)
            assert client.post("/v1/images", files={"image": small}).status_code == 200
            fill = Path(f"/proc/{process.pid}/root/dev/shm/fill")  # its own, not the machine's
            with pytest.raises(OSError, match="No space left"):
                write_for_ever(fill)
            answer = client.post("/v1/images", files={"image": large})
            assert answer.status_code == 503, answer.text
            assert "/dev/shm is full" in answer.json()["error"]["message"]
            assert client.post("/v1/images", files={"image": small}).status_code == 200
            fill.unlink()
            assert client.post("/v1/images", files={"image": large}).status_code == 200
            told = client.get("/health").json()
            assert (told["state"], told["restarts"], told["reloads"]) == ("ready", 0, 0)
            process.terminate()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    record(
        "full_shm_later",
        "/dev/shm filled while it serves",
        {"too large a request": ("503 with the mend", "one clear error"), "restarts": (0, "0")},
    )


def test_no_room_for_a_pull(namespaces: None, tmp_path: Path) -> None:
    """Told before anything is fetched."""
    home = tmp_path / "home"
    code, told, left = run_in_small(home, 20, home, "pull", "sam2:tiny")
    assert code == 1
    assert "has 21 MB free" in told
    assert "TRITON_SAM_HOME" in told
    assert "blobs" not in left
    record("full_disk_pull", "no room at a pull", {"told by one sentence before anything is fetched": ("yes", "yes")})


def test_a_disk_that_fills_in_the_middle_of_a_pull(namespaces: None, tmp_path: Path) -> None:
    """With room again the same command goes on, and what it keeps has the right checksums."""
    home = tmp_path / "home"
    home.mkdir()
    words, environment = command("pull", "sam2:tiny", home=home)
    script = 'mount -t tmpfs -o size=600m tmpfs "$0" && "$@"; echo "ended: $?"; read made_room; "$@"; echo "ended: $?"'
    small_world = ["unshare", "-m", "sh", "-c", script, str(home)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*small_world, *words], env=environment, text=True, **pipes) as process:
        try:
            inside = Path(f"/proc/{process.pid}/root{home}")  # its own, not the machine's
            eventually(lambda: bytes_in(inside) > 20e6, "the first megabytes", pause=0.001)
            (pull,) = children_of(process.pid)
            os.kill(pull, signal.SIGSTOP)
            under_way = bytes_in(inside)
            with pytest.raises(OSError, match="No space left"):
                write_for_ever(inside / "fill")
            os.kill(pull, signal.SIGCONT)
            assert process.stdout is not None
            assert next(line for line in process.stdout if line.startswith("ended:")) == "ended: 1\n"
            (inside / "fill").unlink()
            output, errors = process.communicate("\n", timeout=PATIENCE)
        finally:
            process.kill()
    assert output.endswith("ended: 0\n"), errors
    (told,) = (line for line in errors.splitlines() if "disk is full" in line)  # the others show the progress
    assert told.startswith("error: ")
    assert "make room or set TRITON_SAM_HOME to another disk" in told
    record(
        "full_disk_later",
        "the disk full in the middle of a pull",
        {
            "megabytes that had come": (round(under_way / 1e6, 1), ""),
            "told by one sentence with the mend": ("yes", "yes"),
            "with room again the same command": ("goes on, and ends well", ""),
        },
    )


def bytes_in(folder: Path) -> int:
    """Of all files that are still there when they are looked at."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found += path.stat().st_size * path.is_file()
    return found


def test_no_room_for_a_model(namespaces: None, real_repository: Path, tmp_path: Path) -> None:
    """The weights are there; the repository's disk is full in the middle of the writing, and nothing half is left."""
    models = tmp_path / "models"
    options = ("setup", "sam2:tiny", f"--model-repository={models}")
    code, told, left = run_in_small(models, 20, get_settings().home, *options)
    assert code == 1
    assert "No space left on device" in told
    assert str(models) in told
    assert left == "", "half a model was left"
    record(
        "full_disk_setup",
        "the disk full in the middle of a setup",
        {"told by one sentence": ("yes", "yes"), "files left of half a model": (len(left.split()), "0")},
    )
