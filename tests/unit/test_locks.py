"""locks/ covers pyproject.toml for each Python and processor, and scripts/make_venv.sh installs by it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from triton_sam.models.fetch.pip_settings import PipSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MANIFEST: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = MANIFEST["project"]["optional-dependencies"]
#: What writes the locks is not locked.
LOCKED = sorted(set(EXTRAS) - {"lock"})
PIN = re.compile(r"[a-z0-9][a-z0-9-]*==[a-z0-9.!]+( ; platform_machine == '(x86_64|aarch64)')?")
CUDA = re.compile(r"(nvidia-(?!pytriton)|cuda-)")


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "scripts" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = _script()
PLACES = [(python, machine) for python in script.PYTHONS for machine in script.MACHINES]


def lines_of(python: str) -> list[str]:
    text = (ROOT / "locks" / f"py{python.replace('.', '')}.txt").read_text()
    return [line for line in text.splitlines() if not line.startswith("#")]


def applies(requirement: Requirement, python: str, machine: str) -> bool:
    place = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    place |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(place)


def direct_requirements() -> Iterator[Requirement]:
    """Those of the package, of each locked extra, and of what builds and installs it."""
    lists = [MANIFEST["project"]["dependencies"], MANIFEST["build-system"]["requires"], script.ALSO]
    for words in [*lists, *(EXTRAS[name] for name in LOCKED)]:
        yield from (found for word in words if (found := Requirement(word)).name != MANIFEST["project"]["name"])


@pytest.mark.parametrize("python", script.PYTHONS)
def test_each_line_is_an_exact_pin_and_nothing_else(python: str) -> None:
    wrong = [line for line in lines_of(python) if not PIN.fullmatch(line) or CUDA.match(line)]
    assert not wrong, "a lock has neither addresses nor ranges, nor what only GPUs need: make lock"


@pytest.mark.parametrize(("python", "machine"), PLACES)
def test_direct_requirements_are_pinned_within_their_ranges(python: str, machine: str) -> None:
    pins = [pin for line in lines_of(python) if applies(pin := Requirement(line), python, machine)]
    versions = {pin.name: str(pin.specifier).removeprefix("==") for pin in pins}
    assert len(versions) == len(pins), "a package is pinned twice: make lock"
    wanted = [requirement for requirement in direct_requirements() if applies(requirement, python, machine)]
    assert {"numpy", "torch", "pytest", "hatchling"} <= {requirement.name for requirement in wanted}
    outside = [
        f"{requirement} (locked: {versions.get(canonicalize_name(requirement.name))})"
        for requirement in wanted
        if not requirement.specifier.contains(versions.get(canonicalize_name(requirement.name), "0"), prereleases=True)
        or canonicalize_name(requirement.name) not in versions
    ]
    assert not outside, f"locks/ does not cover pyproject.toml on Python {python}, {machine}: make lock"


def test_uv_is_told_the_indexes_of_pip() -> None:
    settings = PipSettings(("https://user:word@first/simple", "file:///second/simple"), ("/wheels",))
    told = tomllib.loads(script.settings_for_uv(settings))
    assert (told["index-url"], told["extra-index-url"]) == (settings.indexes[0], [settings.indexes[1]])
    assert (told["find-links"], told["no-index"]) == (["/wheels"], False)
    alone = tomllib.loads(script.settings_for_uv(PipSettings((), ("/wheels",))))
    assert alone["no-index"]
    assert "index-url" not in alone


def test_what_one_processor_alone_has_gets_a_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "ROOT", tmp_path)
    x86, arm = {"same": "1.0", "only": "2.0", "other": "3.1"}, {"same": "1.0", "other": "3.0"}
    script.write_lock("3.11", {"x86_64": x86, "aarch64": arm})
    written = (tmp_path / "locks" / "py311.txt").read_text().splitlines()
    assert written[1:] == [
        "only==2.0 ; platform_machine == 'x86_64'",
        "other==3.0 ; platform_machine == 'aarch64'",
        "other==3.1 ; platform_machine == 'x86_64'",
        "same==1.0",
    ]


def installs(folder: Path, **environment: str) -> list[list[str]]:
    """The words after "pip install" of each call that make_venv.sh makes, for an environment with Python 3.12 in it."""
    calls = folder / "calls"
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    recorder = (
        f"import json, sys; open({str(calls)!r}, 'a').write(json.dumps(sys.argv[1:]) + chr(10)); "
        "sys.argv[1] == '-c' and print('312')"
    )
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{recorder}" "$@"\n')
    python.chmod(0o755)
    command = ["bash", str(ROOT / "scripts" / "make_venv.sh"), str(folder), "server"]
    clean = {name: value for name, value in os.environ.items() if name != "LATEST"}
    subprocess.run(command, cwd=ROOT, env=clean | {"PYTHON": sys.executable} | environment, check=True, timeout=60)
    made = [json.loads(line) for line in calls.read_text().splitlines()]
    return [words[3:] for words in made if words[:3] == ["-m", "pip", "install"]]


def test_the_environment_follows_the_lock_of_its_own_python(tmp_path: Path) -> None:
    pip, project = installs(tmp_path)
    lock = ["--constraint", "locks/py312.txt"]
    assert pip[-3:] == [*lock, "pip"]
    assert [*lock, "--build-constraint", "locks/py312.txt", "--editable", ".[server]"] == [
        word for word in project if not word.startswith(("--quiet", "--disable", "--no-compile", "nodejs"))
    ]


def test_latest_follows_no_lock(tmp_path: Path) -> None:
    pip, project = installs(tmp_path, LATEST="1")
    for words in (pip, project):
        assert "--upgrade" in words
        assert not [word for word in words if "locks" in word or "constraint" in word]
