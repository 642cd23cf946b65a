from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from triton_sam import __version__
from triton_sam.cli import app, models
from triton_sam.cli import doctor as doctor_module
from triton_sam.cli.doctor import FINE, NOTE, WRONG, Finding
from triton_sam.cli.interrupts import Interrupts
from triton_sam.client.sync_client import Segmentation
from triton_sam.core.rle import from_rle
from triton_sam.errors import ServerError, SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.server.host import free_port
from triton_sam.settings import get_settings

runner = CliRunner()
COMMANDS = ("models", "pull", "export", "setup", "serve", "demo", "segment", "doctor")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test's own, nobody at TRITON_URL, and logging as it was."""
    for name in list(os.environ):
        if name.upper().startswith("TRITON_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("TRITON_SAM_HOME", str(folder))
    monkeypatch.setenv("TRITON_URL", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    get_settings.cache_clear()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield folder
    root.handlers[:], root.level = handlers, level
    get_settings.cache_clear()


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    path = tmp_path / "photograph.png"
    Image.fromarray(np.full((6, 10, 3), 200, np.uint8)).save(path)
    return path


@dataclass
class Ended:
    code: int
    out: str
    err: str


def run_main(*words: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """``main`` as the installed command calls it, in this process."""
    monkeypatch.setattr(sys, "argv", ["triton-sam", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        app.main()
    said = capsys.readouterr()
    return Ended(int(ended.value.code or 0), said.out, said.err)


def run_process(*words: object, **environment: str) -> Ended:
    done = subprocess.run(
        [sys.executable, "-m", "triton_sam.cli", *map(str, words)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def assert_one_sentence(ended: Ended, *told: str) -> None:
    assert ended.code == 1
    assert ended.err.lstrip().startswith("error: ")  # a progress bar without a file leaves an empty line
    assert ended.err.strip().count("\n") == 0
    assert "Traceback" not in ended.err
    assert "this is a bug" not in ended.err
    for words in told:
        assert words in ended.err


# as a process


def test_version() -> None:
    ended = run_process("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"triton-sam {__version__}\n", "")


def test_an_error_is_one_sentence() -> None:
    ended = run_process("pull", "sam9:huge")
    assert_one_sentence(ended, "'sam9:huge'", DEFAULT_MODEL)
    assert ended.out == ""


@pytest.mark.parametrize("words", [("--debug", "pull", "sam9:huge"), ("pull", "sam9:huge", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(words: tuple[str, ...]) -> None:
    ended = run_process(*words)
    assert ended.code == 1
    assert "Traceback" in ended.err
    assert "InvalidInput" in ended.err
    assert "get_spec" in ended.err


def test_no_server(photograph: Path) -> None:
    ended = run_process("segment", photograph, "--point", "3,2")
    assert_one_sentence(ended, os.environ["TRITON_URL"], "triton-sam serve", "TRITON_URL")


def test_no_server_over_grpc(photograph: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = run_process("segment", photograph, "--point", "3,2", TRITON_URL=f"grpc://{address}")
    assert_one_sentence(ended, address, "TRITON_URL")


def test_the_option_goes_before_the_variable(photograph: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert_one_sentence(run_process("segment", photograph, "--point", "3,2", "--url", address), address)


# errors


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("serve", "sam9:huge"), "sam9:huge"),
        (("segment", "photograph.png", "--point", "3"), "'3' is no --point"),
        (("segment", "photograph.png", "--point", "3,x"), "'3,x' is no --point"),
        (("segment", "photograph.png", "--point", "1,2,3,4"), "'1,2,3,4' is no --point"),
        (("segment", "photograph.png", "--point", ""), "is no --point"),
        (("segment", "photograph.png", "--box", "1,2,3"), "'1,2,3' is no --box"),
        (("segment", "photograph.png", "--point", "3,2", "--out", "mask.jpg"), "mask.jpg"),
        (("segment", "photograph.png", "--point", "3,2", "--out", "mask"), "no .png or .json"),
        (("segment", "photograph.png", "--point", "3,2", "--out", "nowhere/mask.png"), "does not exist"),
        (("segment", "missing.png", "--point", "3,2"), "missing.png"),
        (("segment", ".", "--point", "3,2"), "cannot read the image"),
        (("segment", "photograph.png", "--box", "0,0,1,1", "--box", "1,1,2,2", "--point", "1,1"), "ambiguous"),
        (("segment", "photograph.png", "--point", "3,2", "--url", "ftp://x"), "ftp://x"),
    ],
)
@pytest.mark.usefixtures("photograph")
def test_errors(
    words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_one_sentence(run_main(*words, monkeypatch=monkeypatch, capsys=capsys), told)


@pytest.mark.parametrize("point", ["1,2,inf", "1,2,nan", "1,2,0.5", "1,2,7", "1,2,-1"])
def test_a_label_is_one_or_nothing(
    point: str, photograph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run_main("segment", photograph, "--point", point, monkeypatch=monkeypatch, capsys=capsys)
    assert_one_sentence(ended, point)


@pytest.mark.parametrize("text", ["[/x]", "[red]", "a[server]b", ":smile:"])
def test_an_error_is_printed_as_it_is(
    text: str, photograph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run_main("segment", photograph, "--point", text, monkeypatch=monkeypatch, capsys=capsys)
    assert_one_sentence(ended, f"error: {text!r} is no --point")


def test_a_mend_keeps_its_brackets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise SetupError("no server: pip install 'triton-sam[server]'")

    monkeypatch.setattr(models, "get_spec", fail)
    ended = run_main("pull", "x", monkeypatch=monkeypatch, capsys=capsys)
    assert_one_sentence(ended, "pip install 'triton-sam[server]'")


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRITON_SAM_THREADS", "many")
    ended = run_main("models", monkeypatch=monkeypatch, capsys=capsys)
    assert_one_sentence(ended, "TRITON_SAM_THREADS", "many")


def test_a_fault_of_ours_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: str) -> None:
        raise ZeroDivisionError("[/oh]")

    monkeypatch.setattr(models, "get_spec", fail)
    ended = run_main("pull", "x", monkeypatch=monkeypatch, capsys=capsys)
    assert ended.code == 1
    assert ended.err == "error: ZeroDivisionError: [/oh] (this is a bug: --debug shows where)\n"


def test_an_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "app", interrupt)
    ended = run_main("pull", "x", monkeypatch=monkeypatch, capsys=capsys)
    assert (ended.code, ended.err) == (130, "interrupted\n")


@pytest.mark.parametrize("command", ["serve", "demo"])
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_serving_is_for_linux(
    command: str, system: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert_one_sentence(run_main(command, monkeypatch=monkeypatch, capsys=capsys), "Linux", "TRITON_URL")
    assert not home.exists()  # nothing was downloaded first


# parsing


def test_help_names_every_command() -> None:
    done = runner.invoke(app.app, ["--help"])
    assert done.exit_code == 0
    for command in COMMANDS:
        assert command in done.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert runner.invoke(app.app, [command, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["segment"],
        ["serve", "--http-port", "70000"],
        ["serve", "--grpc-port", "-1"],
        ["serve", "--log-level", "loud"],
        ["serve", "--nonsense"],
        ["doctor", "too much"],
    ],
)
def test_wrong_usage_exits_with_2(words: list[str]) -> None:
    assert runner.invoke(app.app, words).exit_code == 2


def test_serve_passes_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton_sam import serving

    asked: dict[str, Any] = {}

    def prepare(*arguments: object) -> serving.Served:
        asked["prepare"] = arguments[:3]
        return serving.Served(tmp_path, {"sam2": get_spec(DEFAULT_MODEL)}, {"shapes": get_vlm("vlm:shapes")})

    def serve(*arguments: object, **options: object) -> None:
        asked["serving"] = arguments, options
        raise ServerError("enough")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(serving, "prepare", prepare)
    monkeypatch.setattr(serving, "serving", serve)
    before = signal.getsignal(signal.SIGTERM)
    try:
        words = "serve sam2:tiny --http-port 1 --grpc-port 2 --metrics-port 3 --service-port 0 --host 0.0.0.0 --raw"
        words += " --triton-host 127.0.0.2"
        done = runner.invoke(app.app, [*words.split(), "--log-level", "info", "--model-repository", str(tmp_path)])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(done.exception, ServerError)
    assert asked["prepare"] == (["sam2:tiny"], get_settings(), tmp_path)
    arguments, options = asked["serving"]
    assert arguments == (tmp_path, {"sam2": get_spec(DEFAULT_MODEL)}, get_settings())
    assert isinstance(options.pop("shall_stop"), Interrupts)
    assert options == {
        "vlms": {"shapes": get_vlm("vlm:shapes")},
        "bind": "0.0.0.0",
        "triton_bind": "127.0.0.2",
        "ports": serving.Ports(1, 2, 3, 0),
        "raw": True,
        "log_level": "info",
    }


# segment

MASKS = np.zeros((2, 6, 10), np.bool_)
MASKS[0, 1:3, 2:5] = True
MASKS[1, 4:, 7:] = True


class FakeClient:
    """Takes the place of the client; answers one mask for each object."""

    made: list[FakeClient]

    def __init__(self, url: str | None, model: str) -> None:
        self.url, self.model = url, model
        self.image: Path | None = None
        self.asked: tuple[Any, ...] = ()
        FakeClient.made.append(self)

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def set_image(self, image: Path) -> None:
        self.image = image

    def segment(self, points: Any = None, labels: Any = None, box: Any = None, objects: Any = None) -> Segmentation:
        self.asked = (points, labels, box, objects)
        count = len(objects) if objects else 1
        result = {
            "width": 10,
            "height": 6,
            "model": DEFAULT_MODEL,
            "timings_ms": {"total": 12.4},
            "mask": {},
            "masks": [{"score": 0.25 * (index + 1), "object": index} for index in range(count)],
        }
        return Segmentation(result, np.packbits(MASKS[:count], axis=2))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    monkeypatch.setattr(app, "SAM2TritonClient", FakeClient)
    monkeypatch.setattr(FakeClient, "made", [], raising=False)
    return FakeClient


def test_segment_with_points_and_a_box(fake: type[FakeClient], photograph: Path) -> None:
    words = ["--point", "3,2", "--point", "4.5,1,0", "--box", "0,0,5,5", "--model", "sam3", "--url", "host:1"]
    done = runner.invoke(app.app, ["segment", str(photograph), *words])
    assert done.exit_code == 0, done.output
    (client,) = fake.made
    assert (client.url, client.model, client.image, client.closed) == ("host:1", "sam3", photograph, True)
    assert client.asked == ([[3.0, 2.0], [4.5, 1.0]], [1, 0], [0.0, 0.0, 5.0, 5.0], None)
    assert done.output == "1 mask(s), score 0.250, 12 ms on the server: overlay.png\n"
    assert Path("overlay.png").exists()


def test_several_boxes_are_several_objects(fake: type[FakeClient], photograph: Path) -> None:
    done = runner.invoke(app.app, ["segment", str(photograph), "--box", "0,0,5,5", "--box", "1,1,6,6"])
    assert done.exit_code == 0, done.output
    assert fake.made[0].asked == (None, None, None, [{"box": [0.0, 0.0, 5.0, 5.0]}, {"box": [1.0, 1.0, 6.0, 6.0]}])
    assert "2 mask(s), score 0.250, 0.500" in done.output


@pytest.mark.usefixtures("fake")
def test_what_is_written(photograph: Path, tmp_path: Path) -> None:
    targets = [tmp_path / name for name in ("result.json", "mask-1.PNG", "look.png")]
    options = [word for target in targets for word in ("--out", str(target))]
    boxes = ["--box", "0,0,5,5", "--box", "1,1,6,6"]
    done = runner.invoke(app.app, ["segment", str(photograph), *boxes, *options])
    assert done.exit_code == 0, done.output
    result = json.loads(targets[0].read_text())
    assert (result["width"], result["height"], result["model"]) == (10, 6, DEFAULT_MODEL)
    assert "mask" not in result
    assert [entry["score"] for entry in result["masks"]] == [0.25, 0.5]
    assert np.array_equal([from_rle(entry["rle"]) for entry in result["masks"]], MASKS)
    with Image.open(targets[1]) as mask:
        assert mask.mode == "L"
        assert np.array_equal(np.asarray(mask), MASKS.any(axis=0) * np.uint8(255))
    with Image.open(targets[2]) as look:
        assert look.mode == "RGB"
        changed = (np.asarray(look) != 200).any(axis=2)
    assert changed[MASKS.any(axis=0)].all()


@pytest.mark.usefixtures("fake")
def test_the_overlay_lies_on_the_upright_picture(tmp_path: Path) -> None:
    turned = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (6, 10)).save(turned, exif=exif)  # a person sees 10 x 6
    done = runner.invoke(app.app, ["segment", str(turned), "--point", "3,2"])
    assert done.exit_code == 0, done.output
    with Image.open("overlay.png") as look:
        assert look.size == (10, 6)


# doctor


@pytest.mark.parametrize(("state", "code"), [(FINE, 0), (NOTE, 0), (WRONG, 1)])
def test_doctor_exits_with_what_it_found(state: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding("Python", FINE, "3.11"), Finding("server", state, "pip install 'triton-sam[server]' [/]")]
    monkeypatch.setattr(doctor_module, "examine", lambda _: iter(findings))
    done = runner.invoke(app.app, ["doctor"])
    assert done.exit_code == code
    lines = done.output.splitlines()
    assert lines[0].split() == ["fine", "Python", "3.11"]
    assert lines[1].startswith(state)
    assert "pip install 'triton-sam[server]' [/]" in lines[1]
    assert any("1 thing(s) must be mended" in line for line in lines) is (state == WRONG)


# waiting


def test_waiting_ends_with_the_reason_of_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([False, True])
    supervisor = SimpleNamespace(wait=lambda _: next(answers), status={"reason": "it died"})
    with pytest.raises(ServerError, match="it died"):
        app._wait(supervisor, Interrupts())
    assert "serving until Ctrl-C" in capsys.readouterr().out


def test_waiting_ends_with_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    interrupts = Interrupts()

    def interrupt(_: float) -> bool:
        interrupts.seen = True
        return False

    app._wait(SimpleNamespace(wait=interrupt), interrupts)
    assert "stopping" in capsys.readouterr().out
