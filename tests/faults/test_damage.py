"""Full disks, full shared memory, damaged models, taken ports: one clear error each, and what can serve does."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.faults.forms import LONG, record
from tests.faults.helpers import children_of
from tests.faults.test_recovery import POINT, wait_until_serving
from tests.faults.unhurt import png
from tests.integration.serve_folder import health, serve_folder
from tests.waiting import eventually
from triton_sam import SAM2TritonClient
from triton_sam.host import free_port
from triton_sam.repository import write_models
from triton_sam.seals import digest_of
from triton_sam.serving import Running
from triton_sam.settings import get_settings
from triton_sam.setup_models import set_up
from triton_sam.specs import ModelSpec
from triton_sam.weights import WeightStore

pytestmark = pytest.mark.triton
PATIENCE = 120.0
PORTS = ("http", "grpc", "metrics", "service")
#: Bytes overwritten; a file missing; a file of which only the first half was written.
DAMAGED = ("sam2_corrupt", "sam2_cut", "sam2_half")


# -- models ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged(repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one whole model and every kind of damage."""
    models = tmp_path_factory.mktemp("damaged") / "model_repository"
    encoder, decoder = repository / "sam2/1/encoder.onnx", repository / "sam2/1/decoder.onnx"
    for name in ("sam2", *DAMAGED):
        write_models(spec, encoder, decoder, models, name=name)
    corrupt = models / "sam2_corrupt" / "1" / "decoder.onnx"
    data = bytearray(corrupt.read_bytes())
    data[1000:5000] = bytes(4000)
    corrupt.unlink()  # a hard link: the others have the same file
    corrupt.write_bytes(data)
    (models / "sam2_half" / "1" / "decoder.onnx").unlink()
    cut = models / "sam2_cut" / "1" / "decoder.onnx"
    whole = cut.read_bytes()
    cut.unlink()
    cut.write_bytes(whole[: len(whole) // 2])
    (models / "stray" / "1").mkdir(parents=True)
    (models / "stray" / "1" / "notes.txt").write_text("no model")
    (models / "empty").mkdir()
    (models / "strange").mkdir()
    (models / "strange" / "config.pbtxt").write_text("this is no config {{{")
    return models


@pytest.fixture(scope="module")
def started(damaged: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, list[str]]]:
    """(a server of it, what it logged at its start)"""
    lines: list[str] = []
    listener = logging.Handler(logging.ERROR)
    listener.emit = lambda entry: lines.append(entry.getMessage())  # type: ignore[method-assign]
    logging.getLogger("triton_sam").addHandler(listener)
    try:
        with serve_folder(damaged, tmp_path_factory.mktemp("home")) as running:
            yield running, lines
    finally:
        logging.getLogger("triton_sam").removeHandler(listener)


def test_damaged_models_are_told_and_the_others_serve(
    started: tuple[Running, list[str]], photographs: Path, damaged: Path, repository: Path, spec: ModelSpec
) -> None:
    running, lines = started
    told = health(running)
    assert (told["state"], told["versions"]) == ("ready", {"sam2": "1"})
    assert sorted(told["missing"]) == list(DAMAGED)
    for name in DAMAGED:
        assert [line for line in lines if line.startswith(f"{name} does not load")] == [
            f"{name} {told['problems'][name]}"
        ]
        assert "decoder.onnx" in told["problems"][name]
        assert "triton-sam setup" in told["problems"][name], "the mend"
        assert "\n" not in told["problems"][name]
    picture = (photographs / "coffee.png").read_bytes()
    with httpx.Client(base_url=running.urls["service"], timeout=PATIENCE, trust_env=False) as client:
        for name in DAMAGED:
            answer = client.post("/v1/images", files={"image": picture}, data={"model": name})
            assert answer.status_code == 503, answer.text
            assert "does not load on this server" in answer.json()["error"]["message"]
        for name in ("stray", "empty", "strange"):
            answer = client.post("/v1/images", files={"image": picture}, data={"model": name})
            assert answer.status_code == 404, answer.text
    with SAM2TritonClient(running.urls["HTTP"], "sam2") as good:
        good.set_image(picture)
        expected = good.segment([POINT]).masks.masks
    assert expected.any()

    # A whole version in its place serves without a restart, and gives the same masks.
    write_models(
        spec, *(repository / f"sam2/1/{graph}.onnx" for graph in ("encoder", "decoder")), damaged, name="sam2_half"
    )
    eventually(lambda: "sam2_half" in health(running)["versions"], "the mended model")
    told = health(running)
    assert (list(told["missing"]), told["restarts"]) == (["sam2_corrupt", "sam2_cut"], 0)
    with SAM2TritonClient(running.urls["HTTP"], "sam2_half") as mended:
        mended.set_image(picture)
        np.testing.assert_array_equal(mended.segment([POINT]).masks.masks, expected)
    record(
        "damaged_models",
        "corrupt ONNX, half-written version, stray folders in one repository",
        {
            "models told of by one sentence with the mend": (len(told["missing"]) + 1, len(DAMAGED)),
            "the whole one serves, the mended one too": ("yes", "yes"),
        },
    )


def test_the_mend_mends_what_was_written_into(spec: ModelSpec, store: WeightStore, tmp_path: Path) -> None:
    """What is served is a link to the cache, so damage reaches both: `setup`, which errors name, may not believe it."""
    own, models = WeightStore(tmp_path / "home"), tmp_path / "model_repository"
    own.blobs.mkdir(parents=True)
    for file in spec.files:
        shutil.copyfile(store.path(file), own.path(file))
    set_up(spec, own, models)
    served = models / "sam2" / "1" / "encoder.onnx"
    whole = digest_of(served)
    with served.open("r+b") as stream:
        stream.seek(served.stat().st_size // 2)
        stream.write(bytes(4096))
    assert digest_of(served) != whole
    set_up(spec, own, models)
    assert digest_of(models / "sam2" / "2" / "encoder.onnx") == whole


# -- commands ----------------------------------------------------------------------------------------------------


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
    give_up = pytest.fail if LONG else pytest.skip
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        give_up("small file systems of a test's own need root and unshare")
    tried = subprocess.run(
        ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"], capture_output=True, timeout=PATIENCE
    )
    if tried.returncode:
        give_up(f"mount namespaces are not allowed here: {tried.stderr.decode().strip()}")


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


def test_no_room_for_a_model(namespaces: None, repository: Path, tmp_path: Path) -> None:
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
