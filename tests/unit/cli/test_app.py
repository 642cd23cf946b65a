from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.cli.helpers import assert_one_sentence, run_main, run_process
from triton_sam import __version__
from triton_sam.cli import app, models
from triton_sam.cli import doctor as doctor_module
from triton_sam.cli.findings import FINE, NOTE, WRONG, Finding
from triton_sam.cli.progress import download_progress
from triton_sam.errors import ServerError, SetupError
from triton_sam.models.catalog import DEFAULT_MODEL
from triton_sam.server.host import free_port
from triton_sam.settings import get_settings

runner = CliRunner()
COMMANDS = ("models", "pull", "export", "setup", "serve", "demo", "segment", "doctor")


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
        (("segment", "photograph.png", "--point", "3"), "'3' is not a --point"),
        (("segment", "photograph.png", "--point", "3,x"), "'3,x' is not a --point"),
        (("segment", "photograph.png", "--point", "1,2,3,4"), "'1,2,3,4' is not a --point"),
        (("segment", "photograph.png", "--point", ""), "is not a --point"),
        (("segment", "photograph.png", "--box", "1,2,3"), "'1,2,3' is not a --box"),
        (("segment", "photograph.png", "--point", "3,2", "--out", "mask.jpg"), "mask.jpg"),
        (("segment", "photograph.png", "--point", "3,2", "--out", "mask"), "neither a .png nor a .json"),
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
    assert_one_sentence(ended, f"error: {text!r} is not a --point")


def test_a_fix_keeps_its_brackets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise SetupError("no server: pip install 'triton-sam[server]'")

    monkeypatch.setattr(models, "chosen_spec", fail)
    ended = run_main("pull", "x", monkeypatch=monkeypatch, capsys=capsys)
    assert_one_sentence(ended, "pip install 'triton-sam[server]'")


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRITON_SAM_THREADS", "many")
    ended = run_main("models", monkeypatch=monkeypatch, capsys=capsys)
    assert_one_sentence(ended, "TRITON_SAM_THREADS", "many")


def test_a_fault_of_ours_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: str) -> None:
        raise ZeroDivisionError("[/oh]")

    monkeypatch.setattr(models, "chosen_spec", fail)
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

    asked: list[tuple[object, ...]] = []

    def serve_models(*arguments: object) -> None:
        asked.append(arguments)
        raise ServerError("enough")

    monkeypatch.setattr(serving, "serve_models", serve_models)
    words = "serve sam2:tiny --http-port 1 --grpc-port 2 --metrics-port 3 --service-port 0 --host 0.0.0.0 --raw"
    words += " --triton-host 127.0.0.2"
    done = runner.invoke(app.app, [*words.split(), "--log-level", "info", "--model-repository", str(tmp_path)])
    assert isinstance(done.exception, ServerError)
    request = serving.ServeRequest(
        ["sam2:tiny"], tmp_path, "0.0.0.0", "127.0.0.2", serving.Ports(1, 2, 3, 0), raw=True, log_level="info"
    )
    assert asked == [(request, get_settings(), download_progress)]


@pytest.mark.parametrize(("vlm", "ids"), [(False, [DEFAULT_MODEL]), (True, [DEFAULT_MODEL, "vlm:shapes"])])
def test_the_demo_serves_the_default_model(vlm: bool, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from triton_sam import serving

    asked: list[serving.ServeRequest] = []

    def serve_models(request: serving.ServeRequest, *_: object) -> None:
        asked.append(request)
        raise ServerError("enough")

    monkeypatch.setattr(serving, "serve_models", serve_models)
    done = runner.invoke(app.app, ["demo", "--http-port", "1", *(["--vlm"] if vlm else [])])
    assert isinstance(done.exception, ServerError)
    assert asked == [serving.ServeRequest(ids, ports=serving.Ports(http=1))]


@pytest.mark.parametrize("service", [False, True])
def test_waiting_for_an_interrupt(service: bool, capsys: pytest.CaptureFixture[str]) -> None:
    waited = []
    urls = {"service": "http://127.0.0.1:8080"} if service else {}
    running: Any = SimpleNamespace(urls=urls, wait=lambda: waited.append(True))
    app._wait(running)
    lines = capsys.readouterr().out.splitlines()
    assert waited == [True]
    assert lines[-2:] == ["serving until Ctrl-C", "stopping: finishing the requests in flight"]
    assert ("open http://127.0.0.1:8080 in a browser to try it" in lines) is service


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
    assert any("1 problem hinders what is set up" in line for line in lines) is (state == WRONG)
