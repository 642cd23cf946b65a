"""The scripts are thin: what they hand to ``triton-sam`` is all there is to test."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from triton_sam.cli import app
from triton_sam.models.catalog import CATALOG, FAMILY_DEFAULTS

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SHELL = ("download_sam1.sh", "download_sam2.sh", "download_sam3.sh")
EXPORTS = ("export_sam1_to_onnx.py", "export_sam2_to_onnx.py", "export_sam3_to_onnx.py")


def false_cli(folder: Path, name: str) -> None:
    """A ``triton-sam`` that says who it is and the words it was called with."""
    folder.mkdir(parents=True)
    program = folder / "triton-sam"
    program.write_text(f'#!/bin/sh\necho "{name}: $*"\n')
    program.chmod(0o755)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the scripts in it and a ``triton-sam`` on PATH, seen from another folder."""
    shutil.copytree(SCRIPTS, tmp_path / "a project" / "scripts")
    false_cli(tmp_path / "bin", "on PATH")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return tmp_path / "a project"


def run_script(project: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(project / "scripts" / name), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("name", "words", "model_id"),
    [
        ("download_sam1.sh", [], FAMILY_DEFAULTS["sam1"]),
        ("download_sam1.sh", ["vit_l"], "sam1:vit_l"),
        ("download_sam1.sh", ["mobile"], "sam1:mobile"),
        ("download_sam2.sh", [], FAMILY_DEFAULTS["sam2"]),
        ("download_sam2.sh", ["large"], "sam2.1:large"),
        ("download_sam3.sh", [], FAMILY_DEFAULTS["sam3"]),
    ],
)
def test_a_download_script_pulls_the_checkpoint(project: Path, name: str, words: list[str], model_id: str) -> None:
    assert model_id in CATALOG
    done = run_script(project, name, *words)
    assert (done.returncode, done.stdout) == (0, f"on PATH: pull {model_id} --checkpoint\n"), done.stderr


def test_the_projects_own_triton_sam_comes_first(project: Path) -> None:
    false_cli(project / ".venv" / "bin", "own")
    assert run_script(project, "download_sam1.sh").stdout.startswith("own: pull ")
    relative = ["bash", os.path.relpath(project / "scripts" / "download_sam1.sh")]
    assert subprocess.run(relative, capture_output=True, text=True, timeout=60, check=True).stdout.startswith("own: ")


def test_without_a_triton_sam_the_mend_is_said(project: Path) -> None:
    (project.parent / "bin" / "triton-sam").unlink()
    done = run_script(project, "download_sam2.sh")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: triton-sam is not installed: run `make demo ONCE=1` in the project's folder first\n"


def test_a_failed_download_fails_the_script(project: Path) -> None:
    (project.parent / "bin" / "triton-sam").write_text("#!/bin/sh\nexit 7\n")
    assert run_script(project, "download_sam1.sh").returncode == 7


@pytest.mark.parametrize("name", SHELL)
def test_usage_downloads_nothing(project: Path, name: str) -> None:
    asked, wrong, many = (run_script(project, name, *words) for words in (["--help"], ["--fast"], ["a", "b"]))
    assert asked.returncode == 0
    assert asked.stdout.startswith(f"usage: {name}")
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", asked.stdout)
    assert (many.returncode, many.stdout, many.stderr) == (2, "", asked.stdout)


def test_usage_lists_every_variant(project: Path) -> None:
    for name, generation in (("download_sam1.sh", "sam1"), ("download_sam2.sh", "sam2.1")):
        variants = [model_id.partition(":")[2] for model_id in CATALOG if model_id.startswith(f"{generation}:")]
        assert f"[{'|'.join(variants)}]" in run_script(project, name, "--help").stdout


@pytest.mark.parametrize(
    "words",
    [
        "pull sam1:vit_b --checkpoint",
        "pull sam3:full --onnx",
        "export auto --checkpoint=c.pt --output-dir=d --image-size=512 --device=cpu --precision=fp16",
    ],
)
def test_the_command_line_knows_what_the_scripts_say(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.pt").touch()
    (tmp_path / "d").mkdir()
    command, *rest = words.split()
    known = typer.main.get_command(app.app).commands[command]
    with known.make_context(command, rest) as context:
        assert context.params


def test_the_ready_made_graphs_are_in_the_catalogue() -> None:
    assert CATALOG["sam3:full"].plain_files


def words_to_cli(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> list[str]:
    """What a Python script calls ``triton-sam`` with."""
    calls: list[list[str]] = []
    monkeypatch.setattr(app, "main", lambda: calls.append(list(sys.argv)))
    monkeypatch.setattr(sys, "argv", [str(SCRIPTS / name), *words])
    monkeypatch.syspath_prepend(str(SCRIPTS))
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")
    (call,) = calls
    assert call[0] == "triton-sam"
    return call[1:]


def test_the_ready_made_graphs_are_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert words_to_cli(monkeypatch, "download_sam3_onnx.py") == ["pull", "sam3:full", "--onnx"]


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_without_options_is_of_the_familys_default(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    family = name.split("_")[1]
    assert words_to_cli(monkeypatch, name) == ["export", FAMILY_DEFAULTS[family]]


@pytest.mark.parametrize("name", EXPORTS)
def test_every_option_reaches_the_command_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    words = ["--output-dir", "a folder", "--image-size", "512", "--device", "cpu", "--precision", "fp16"]
    handed = ["--output-dir=a folder", "--image-size=512", "--device=cpu", "--precision=fp16"]
    assert words_to_cli(monkeypatch, name, *words)[2:] == handed


@pytest.mark.parametrize(("name", "model_id"), [(EXPORTS[0], "auto"), (EXPORTS[1], "auto"), (EXPORTS[2], "sam3:full")])
def test_a_checkpoint_says_itself_what_it_is(monkeypatch: pytest.MonkeyPatch, name: str, model_id: str) -> None:
    assert words_to_cli(monkeypatch, name, "--checkpoint", "c.pt") == ["export", model_id, "--checkpoint=c.pt"]


@pytest.mark.parametrize(
    ("model_type", "model_id"),
    [("vit_b", "sam1:vit_b"), ("vit_l", "sam1:vit_l"), ("vit_h", "sam1:vit_h"), ("vit_t", "sam1:mobile")],
)
def test_types_of_sam1(monkeypatch: pytest.MonkeyPatch, model_type: str, model_id: str) -> None:
    assert model_id in CATALOG
    words = words_to_cli(monkeypatch, EXPORTS[0], "--checkpoint", "c.pth", "--model-type", model_type)
    assert words == ["export", model_id, "--checkpoint=c.pth"]


@pytest.mark.parametrize(
    ("config", "model_id"),
    [
        ("sam2.1_hiera_b+.yaml", "sam2.1:base_plus"),
        ("configs/sam2.1/sam2.1_hiera_l.yaml", "sam2.1:large"),
        ("configs/sam2.1/sam2.1_hiera_s.yaml", "sam2.1:small"),
        ("sam2.1_hiera_t", "sam2.1:tiny"),
        ("sam2_hiera_t.yaml", "sam2:tiny"),
        ("/a/clone/sam2/configs/sam2/sam2_hiera_b+.yaml", "sam2:base_plus"),
    ],
)
def test_configs_of_sam2(monkeypatch: pytest.MonkeyPatch, config: str, model_id: str) -> None:
    assert model_id in CATALOG
    words = words_to_cli(monkeypatch, EXPORTS[1], "--checkpoint", "c.pt", "--model-cfg", config)
    assert words == ["export", model_id, "--checkpoint=c.pt"]


@pytest.mark.parametrize("config", ["sam2.1_hiera_x.yaml", "sam2x1_hiera_t.yaml", "sam2_hiera_t.yaml.bak", ""])
def test_an_unknown_config_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        words_to_cli(monkeypatch, EXPORTS[1], "--model-cfg", config)
    said = capsys.readouterr()
    assert (stopped.value.code, said.out) == (2, "")
    assert said.err == (
        f"error: {config!r} is not a config of an image network: "
        "known are sam2_hiera_X.yaml and sam2.1_hiera_X.yaml with X = t, s, b+ or l\n"
    )


def test_a_python_without_the_package_says_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the system's own Python."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = [sys.executable, "-S", str(SCRIPTS / "download_sam3_onnx.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: triton_sam is not installed in this Python: use the one of the project's .venv/bin\n"
