"""The list of what an environment is made of, and what an audit's report means."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.part("deploy")

ROOT = Path(__file__).resolve().parents[2]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module
    spec.loader.exec_module(module)
    return module


audit = _script()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def direct_dependencies() -> set[str]:
    """Those that everybody has, and those of the server and the service; read without a parser, for Python 3.10."""
    text = (ROOT / "pyproject.toml").read_text()
    lists = [re.search(rf"^{name} = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE) for name in NAMED]
    lines = [line for found in lists if found for line in found[1].splitlines()]
    return {normal(match[1]) for line in lines if (match := re.match(r'\s*"([A-Za-z0-9._-]+)', line))}


NAMED = ("dependencies", "server", "service")


def test_our_direct_dependencies_are_in_the_list(tmp_path: Path) -> None:
    path = tmp_path / "sbom.json"
    audit.write_sbom(path, checked=False)
    document = json.loads(path.read_text())
    assert (document["bomFormat"], document["metadata"]["component"]["name"]) == ("CycloneDX", "triton-sam")
    listed = {normal(component["name"]): component["version"] for component in document["components"]}
    wanted = direct_dependencies()
    assert {"numpy", "fastapi", "nvidia-pytriton", "pydantic"} <= wanted
    assert wanted <= set(listed)
    assert listed["numpy"] == __import__("numpy").__version__


def package(name: str, *advisories: str, **more: Any) -> dict[str, Any]:
    found = [{"id": name, "fix_versions": ["2.0"], "aliases": [f"CVE-{name}"]} for name in advisories]
    return {"name": name, "version": "1.0", "vulns": found, **more}


SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited"}


@pytest.mark.parametrize(
    ("packages", "state", "audited"),
    [
        ([package("a"), package("b")], "clean", 2),
        ([package("a"), SKIPPED], "partly audited", 1),
        ([package("a"), package("b", "PYSEC-1")], "vulnerable", 2),
        ([SKIPPED, package("b", "PYSEC-1")], "vulnerable", 1),
        ([SKIPPED], "not audited", 0),
        ([], "not audited", 0),
    ],
)
def test_what_a_report_means(packages: list[dict[str, Any]], state: str, audited: int) -> None:
    verdict = audit.verdict_of(json.dumps({"dependencies": packages, "fixes": []}))
    assert (verdict.state, verdict.audited) == (state, audited)


@pytest.mark.parametrize("text", ["", "Traceback ...", "[]", "{}"])
def test_no_report(text: str) -> None:
    assert audit.verdict_of(text).state == "not audited"


def test_an_advisory_that_does_not_concern_us() -> None:
    report = json.dumps({"dependencies": [package("b", "PYSEC-1")]})
    assert audit.verdict_of(report).vulnerabilities == ["b 1.0: PYSEC-1, fixed in 2.0"]
    assert audit.verdict_of(report, {"CVE-PYSEC-1": "only where ..."}).state == "clean"


@pytest.mark.parametrize(
    ("state", "required", "code"),
    [("clean", True, 0), ("vulnerable", False, 1), ("not audited", False, 0), ("not audited", True, 2)],
)
def test_how_it_ends(
    state: str, required: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(audit, "write_sbom", lambda path: path.write_text("{}"))
    monkeypatch.setattr(audit, "audit", lambda: audit.Verdict(state, "why", 0, {}, []))
    monkeypatch.setattr(sys, "argv", ["audit.py", str(tmp_path)])
    monkeypatch.delenv("TRITON_SAM_REQUIRE_AUDIT", raising=False)
    if required:
        monkeypatch.setenv("TRITON_SAM_REQUIRE_AUDIT", "1")
    assert audit.main() == code
    assert f"audit: {state}: why" in capsys.readouterr().out
    assert json.loads((tmp_path / "audit.json").read_text())["state"] == state
