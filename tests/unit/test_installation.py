"""The commands that install what is missing: they work as they stand, wherever this package came from."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from triton_sam import installation
from triton_sam.installation import extra_words, install, install_extra, missing_module

ROOT = Path(__file__).resolve().parents[2]
REQUIRES = [
    "numpy<3,>=1.24",
    "nvidia-pytriton==0.7.0; sys_platform == 'linux' and extra == 'server'",
    "numpy<2; extra == 'server'",
    'scikit-image<1,>=0.22; extra == "demo"',
    "triton-sam[server,demo]; extra == 'export'",
    "torch<3,>=2.6; extra == 'export'",
    "torch<3,>=2.6; extra == 'vlm'",
    "triton==3.6.0; (platform_machine == 'x86_64') and extra == 'dev'",
]


# where from


def test_a_clone_is_installed_again_with_the_extra() -> None:
    words = shlex.split(install_extra("export"))
    assert words[-2:] == ["-e", f"{ROOT}[export]"]
    assert (ROOT / "pyproject.toml").is_file()


def test_every_extra_that_is_advised_exists() -> None:
    """The words of all advices in the source, against the extras of pyproject.toml."""
    known = set(re.findall(r"^([a-z-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    advised = set()
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text()
        for names in re.findall(r"""(?:install_extra|_need)\(['"]([a-z,-]+)['"]\)""", text):
            advised |= set(names.split(","))
        if file.name != "installation.py":
            assert not re.search(r"pip install '?triton-sam", text), f"{file}: this package is on no index"
    assert advised
    assert advised <= known


@pytest.mark.parametrize(("editable", "words"), [(True, ["-e"]), (False, [])])
def test_an_installed_folder(editable: bool, words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "my clone"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    direct = {"url": folder.as_uri(), "dir_info": {"editable": editable} if editable else {}}
    found = extra_words("vlm", clone=None, direct_url=direct, requires=REQUIRES)
    assert found == [*words, f"{folder}[vlm]"]


def test_a_wheel_file(tmp_path: Path) -> None:
    wheel = tmp_path / "triton_sam-0.1.0-py3-none-any.whl"
    wheel.touch()
    direct = {"url": wheel.as_uri(), "archive_info": {}}
    assert extra_words("vlm", clone=None, direct_url=direct, requires=REQUIRES) == [f"{wheel}[vlm]"]


@pytest.mark.parametrize(
    ("direct", "word"),
    [
        (
            {"url": "https://host/triton_sam-0.1.0-py3-none-any.whl", "archive_info": {"hash": "sha256=0"}},
            "triton-sam[vlm] @ https://host/triton_sam-0.1.0-py3-none-any.whl",
        ),
        (
            {"url": "https://host/triton-sam.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "triton-sam[vlm] @ git+https://host/triton-sam.git@abc",
        ),
        (
            {"url": "https://host/all.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}, "subdirectory": "sam"},
            "triton-sam[vlm] @ git+https://host/all.git@abc#subdirectory=sam",
        ),
    ],
)
def test_an_address(direct: dict[str, Any], word: str) -> None:
    assert extra_words("vlm", clone=None, direct_url=direct, requires=REQUIRES) == [word]
    assert Requirement(word).extras == {"vlm"}


@pytest.mark.parametrize("direct", [None, {}, {"url": "file:///gone/triton_sam.whl", "archive_info": {}}])
def test_what_is_gone_or_unknown_is_named_package_by_package(direct: dict[str, Any] | None) -> None:
    found = extra_words("export", clone=None, direct_url=direct, requires=REQUIRES)
    assert found == [
        'nvidia-pytriton==0.7.0; sys_platform == "linux"',
        "numpy<2",
        "scikit-image<1,>=0.22",
        "torch<3,>=2.6",
    ]
    assert extra_words("dev", clone=None, direct_url=direct, requires=REQUIRES) == [
        'triton==3.6.0; (platform_machine == "x86_64")'
    ]
    both = extra_words("demo,vlm", clone=None, direct_url=direct, requires=REQUIRES)
    assert both == ["scikit-image<1,>=0.22", "torch<3,>=2.6"]


def test_the_metadata_of_this_package_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word is a requirement that pip takes, and none is this package itself."""
    monkeypatch.setattr(installation, "_clone", lambda: None)
    monkeypatch.setattr(installation, "_direct_url", lambda: None)
    requires = importlib.metadata.requires("triton-sam") or []
    for extra in ("server", "service", "demo", "export", "torch", "bench", "tracing", "vlm"):
        words = extra_words(extra, clone=None, direct_url=None, requires=requires)
        names = {Requirement(word).name for word in words}
        assert names
        assert "triton-sam" not in names
        direct = {Requirement(line).name for line in requires if f'"{extra}"' in line.replace("'", '"')}
        assert direct - {"triton-sam"} <= names


def test_direct_url_is_read_from_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        def __init__(self, text: str | None) -> None:
            self.text = text

        def read_text(self, _name: str) -> str | None:
            return self.text

    for text, found in ((json.dumps({"url": "x"}), {"url": "x"}), (None, None), ("{", None), ("[]", None)):
        monkeypatch.setattr(importlib.metadata, "distribution", lambda _name, text=text: Installed(text))
        assert installation._direct_url() == found


# which pip


def test_pip_of_the_activated_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(shutil, "which", lambda _: str(tmp_path / "bin" / "pip"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert install("numpy<2") == "pip install 'numpy<2'"


@pytest.mark.parametrize("found", [None, "/usr/bin/pip"])
def test_pip_of_another_environment_is_not_used(
    found: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "my venv" / "python3.11"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(shutil, "which", lambda _: found)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert install("onnx") == f"'{python}' -m pip install onnx"


@pytest.mark.parametrize(
    ("uv", "command"),
    [("/bin/uv", "uv pip install --python {} onnx"), (None, "{} -m ensurepip && {} -m pip install onnx")],
)
def test_an_environment_without_pip(
    uv: str | None, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(shutil, "which", lambda name: uv if name == "uv" else None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert install("onnx") == command.format(python, python)


def test_a_program_that_embeds_python_is_not_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/triton_python_backend_stub")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert install("onnx").startswith(f"{sys.prefix}/bin/python -m pip")


def test_the_first_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "safetensors" else object())
    assert missing_module("vlm") == "safetensors"
    assert missing_module("server") == ""
