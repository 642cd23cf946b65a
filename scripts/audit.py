"""Writes a bill of materials of this environment (build/sbom.json) and its known vulnerabilities (build/audit.json).

usage: python scripts/audit.py [FOLDER]      FOLDER: build

The bill of materials is CycloneDX and needs no network. The audit queries the advisories of PyPI. Exit code: 1 for a
known vulnerability. If the advisories cannot be reached, that is reported, and the exit code is 0, or 2 if
TRITON_SAM_REQUIRE_AUDIT is set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CLEAN, PARTLY, VULNERABLE, NOT_AUDITED = "clean", "partly audited", "vulnerable", "not audited"
_SECONDS = 300
_REQUEST_SECONDS = "10"
#: Advisory -> why it does not affect this project. Review each when its package is updated.
ACCEPTED: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of an audit.

    Attributes:
        audited: number of packages that were looked up.
        skipped: package -> why it was not; an index that does not have a package has no advisories for it either.
        vulnerabilities: ``package version: advisory, fixed in ...``.
    """

    state: str
    reason: str
    audited: int
    skipped: dict[str, str]
    vulnerabilities: list[str]


def verdict_of(report: str, accepted: Mapping[str, str] = ACCEPTED) -> Verdict:
    """The verdict of pip-audit's JSON, which also lists no vulnerabilities if nothing could be looked up."""
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, LookupError, TypeError):
        return Verdict(NOT_AUDITED, "pip-audit wrote no report: the advisories cannot be reached", 0, {}, [])
    skipped = {package["name"]: str(package["skip_reason"]) for package in packages if "skip_reason" in package}
    audited = [package for package in packages if "skip_reason" not in package]
    found = [
        f"{package['name']} {package['version']}: {entry['id']}, fixed in {', '.join(entry['fix_versions']) or 'none'}"
        for package in audited
        for entry in package["vulns"]
        if not {entry["id"], *entry.get("aliases", [])} & set(accepted)
    ]
    if found:
        return Verdict(VULNERABLE, f"{len(found)} known vulnerabilities", len(audited), skipped, found)
    if not audited:
        return Verdict(NOT_AUDITED, "no package could be looked up: the advisories cannot be reached", 0, skipped, [])
    reason = f"no known vulnerabilities in {len(audited)} packages; {len(skipped)} could not be looked up"
    return Verdict(PARTLY if skipped else CLEAN, reason, len(audited), skipped, [])


def write_sbom(path: Path, *, checked: bool = True) -> None:
    """Writes the packages of this Python's environment as CycloneDX, with the project as the main component.

    Args:
        checked: validate the file against its schema, which takes most of the time.
    """
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml")]
    command += ["--validate" if checked else "--no-validate", "--output-reproducible", "--of", "JSON"]
    command += ["-o", str(path), sys.executable]
    subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)


def audit() -> Verdict:
    """Looks up all installed packages in PyPI's advisories."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--skip-editable"]
    command += ["--vulnerability-service", "pypi", "--timeout", _REQUEST_SECONDS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return Verdict(NOT_AUDITED, f"the advisories did not answer within {_SECONDS} s", 0, {}, [])
    return verdict_of(done.stdout)


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
    folder.mkdir(parents=True, exist_ok=True)
    write_sbom(folder / "sbom.json")
    verdict = audit()
    (folder / "audit.json").write_text(json.dumps(asdict(verdict), indent=1) + "\n")
    sys.stdout.write(f"audit: {verdict.state}: {verdict.reason} ({folder / 'audit.json'})\n")
    for line in verdict.vulnerabilities:
        sys.stdout.write(f"  {line}\n")
    if verdict.state == VULNERABLE:
        return 1
    return 2 if verdict.state == NOT_AUDITED and os.environ.get("TRITON_SAM_REQUIRE_AUDIT") else 0


if __name__ == "__main__":
    sys.exit(main())
