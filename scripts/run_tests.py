"""Runs the tests in stages, all of them even when one fails, and ends with one summary.

usage: python scripts/run_tests.py              the tests for every commit (`make test`)
       python scripts/run_tests.py --all        and every part of the long suite (`make test-all`)
       python scripts/run_tests.py --part NAME  one part of it, several times for several (`make test-all PART=NAME`)
       python scripts/run_tests.py --without-torch   the tests for every commit that need no torch (`make test-light`)

The long suite records date, commit, duration and result of each part in docs/data/test_record.json, which
docs/how/testing.md shows. Only Python's standard library is needed, so that a broken environment is a failed stage and
not a traceback.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.parts import PARTS  # noqa: E402

RECORD = ROOT / "docs" / "data" / "test_record.json"
REPORTS = ROOT / "build" / "tests"
BIN = Path(sys.executable).parent
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
#: Servers share the cores with their tests: more workers would only wait for each other.
_MOST_SERVERS = 4
#: pytest's exit code if no test was selected.
_NO_TESTS = 5
#: More failures than these are no accident.
_MOST_REPEATED = 3


@dataclass(frozen=True)
class Stage:
    """Commands that run one after the other.

    Attributes:
        tools: commands other than pytest; programs of the environment are found first.
        pytest: arguments for pytest; empty if the stage has no tests.
        environment: variables for all commands.
        repeats: whether a few failed tests are run once more, alone.
    """

    name: str
    about: str
    tools: tuple[tuple[str, ...], ...] = ()
    pytest: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    repeats: bool = False


@dataclass
class Outcome:
    """Result of a stage."""

    stage: Stage
    seconds: float = 0.0
    passed: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    """(what failed, the command that repeats it)"""
    skips: dict[str, int] = field(default_factory=dict)
    """Reason -> number of tests skipped for it."""
    unsteady: list[str] = field(default_factory=list)
    """Tests that failed, and passed when they were repeated alone."""

    @property
    def result(self) -> str:
        return "failed" if self.failures else "passed"

    @property
    def counts(self) -> str:
        if not self.stage.pytest:
            return ""
        skipped = sum(self.skips.values())
        return f"{self.passed} tests passed" + (f", {skipped} skipped" if skipped else "")


SERVERS = str(max(2, min(_MOST_SERVERS, CORES)))
COMMIT = (
    Stage(
        "check",
        "style, types, layers, generated docs",
        tools=(
            ("ruff", "check", "."),
            ("ruff", "format", "--check", "."),
            ("mypy",),
            ("lint-imports",),
            ("python", "scripts/generate_docs.py", "--check"),
        ),
    ),
    # One more than cores: many tests wait for a thread or for another process.
    Stage("unit", "pure logic, no server", pytest=("tests/unit", "-n", str(CORES + 1))),
    Stage(
        "system",
        "the real Triton, its faults, the README and the page in Chromium",
        pytest=("tests/integration", "tests/faults", "tests/e2e", "-n", SERVERS, "--dist", "loadfile"),
        # Servers, browsers and tests share few cores: a machine that stalls for seconds fails a test, a fault fails it
        # twice. What passes only when repeated is listed by the summary, because it should be fixed.
        repeats=True,
    ),
)


_LONG = {"TRITON_SAM_FAULTS_OUT": str(ROOT / "build" / "faults")}
#: Long tests take minutes on two cores, and more if others run at the same time.
_LONG_TESTS = ("--timeout=3000",)
_MANY_EXAMPLES = {"HYPOTHESIS_PROFILE": "full"}
#: What a part needs besides its tests: (commands that run before them, variables).
_NEEDS: dict[str, tuple[tuple[tuple[str, ...], ...], dict[str, str]]] = {
    "deploy": (
        (
            ("bash", "scripts/install_deploy_tools.sh"),
            ("bash", "scripts/install_helm.sh", sys.executable),
            ("python", "scripts/audit.py", "build"),
        ),
        {},
    ),
    "mutations": (
        (("python", "-m", "pytest", "tests/unit", "-m", "hypothesis", "-q", "-n", str(max(2, CORES))),),
        _LONG | _MANY_EXAMPLES,
    ),
    "devices": ((), _LONG),
    "faults": ((), _LONG),
    "faults-processes": ((), {"TRITON_SAM_FAULTS_OUT": str(ROOT / "build" / "faults" / "processes")}),
    "overload": ((("bash", "scripts/install_deploy_tools.sh"),), _LONG),
    "soak": ((), _LONG),
    "video": ((), _LONG),
}


def _long_part(name: str, about: str) -> Stage:
    tools, environment = _NEEDS.get(name, ((), {}))
    return Stage(name, about, tools, ("tests", f"--part={name}", *_LONG_TESTS), environment)


LONG = tuple(_long_part(name, about) for name, about in PARTS.items())


def run(stage: Stage) -> Outcome:
    """Runs all commands of a stage, even if some fail."""
    outcome, begun = Outcome(stage), time.monotonic()
    environment = os.environ | stage.environment | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    _say(f"\n== {stage.name}: {stage.about}")
    for tool in stage.tools:
        if subprocess.run(tool, cwd=ROOT, env=environment, check=False).returncode:
            outcome.failures.append((tool[0], shlex.join(tool)))
    if stage.pytest:
        _run_pytest(outcome, environment)
    outcome.seconds = time.monotonic() - begun
    return outcome


def _run_pytest(outcome: Outcome, environment: dict[str, str]) -> None:
    stage = outcome.stage
    report = REPORTS / f"{stage.name}.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *stage.pytest, "-q", "--durations", "15"]
    command += ["--junit-xml", str(report), "-o", "junit_family=xunit1"]
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    again = " ".join(f"{name}={value}" for name, value in stage.environment.items() if "/" not in value)
    words = [word for word in stage.pytest if word.startswith("--") and "=" in word]
    if report.exists():
        for name, trouble in _cases(report):
            if trouble is None:
                outcome.passed += 1
            elif trouble.startswith("skipped: "):
                reason = trouble.removeprefix("skipped: ")
                outcome.skips[reason] = outcome.skips.get(reason, 0) + 1
            else:
                repeat = shlex.join(["python", "-m", "pytest", *words, name])
                outcome.failures.append((name, f"{again} {repeat}".strip()))
    if stage.repeats and 0 < len(outcome.failures) <= _MOST_REPEATED:
        _repeat(outcome, environment)
    if status and not (outcome.failures or outcome.unsteady) and status != _NO_TESTS:
        outcome.failures.append((f"pytest ended with {status}", shlex.join(["python", "-m", "pytest", *stage.pytest])))
    if not outcome.passed and not outcome.failures:
        outcome.failures.append(("no test passed", shlex.join(["python", "-m", "pytest", *stage.pytest])))


def _repeat(outcome: Outcome, environment: dict[str, str]) -> None:
    """Runs the failed tests once more, each alone; those that pass are unsteady."""
    for name, command in list(outcome.failures):
        _say(f"\n== once more, alone: {name}")
        words = [sys.executable, "-m", "pytest", "-q", name]
        if subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode == 0:
            outcome.failures.remove((name, command))
            outcome.unsteady.append(name)
            outcome.passed += 1


def _cases(report: Path) -> list[tuple[str, str | None]]:
    """(test, None or its problem) of pytest's report; a test with several problems is listed once, with the first."""
    found: dict[str, str | None] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("file") or ""
        module = file.removesuffix(".py").replace("/", ".")
        inner = (case.get("classname") or "").removeprefix(module).strip(".").replace(".", "::")
        name = "::".join(part for part in (file, inner, case.get("name")) if part)
        trouble: str | None = None
        for kind in ("failure", "error", "skipped"):
            entry = case.find(kind)
            if entry is not None:
                trouble = f"{kind}: {(entry.get('message') or '').splitlines()[0] if entry.get('message') else ''}"
                break
        found[name] = found.get(name) or trouble
    return list(found.items())


def summary(title: str, outcomes: list[Outcome], seconds: float) -> str:
    """Every stage with its time, then every failure with the command that repeats it."""
    lines = [f"\n== {title}: {_clock(seconds)}"]
    for outcome in outcomes:
        lines.append(f"  {outcome.stage.name:<11} {outcome.result:<7} {_clock(outcome.seconds):>8}  {outcome.counts}")
    for outcome in outcomes:
        lines += [f"  {count} skipped in {outcome.stage.name}: {reason}" for reason, count in outcome.skips.items()]
    unsteady = [name for outcome in outcomes for name in outcome.unsteady]
    if unsteady:
        lines.append(f"\n{len(unsteady)} failed and passed when repeated alone, so they depend on time or order:")
        lines += [f"  {name}" for name in unsteady]
    failures = [entry for outcome in outcomes for entry in outcome.failures]
    if failures:
        lines.append(f"\n{len(failures)} failed; to repeat them, with {BIN} first on the PATH:")
        lines += [f"  {what}\n      {command}" for what, command in failures]
    else:
        lines.append("all passed")
    return "\n".join(lines)


def record(outcome: Outcome) -> None:
    """Writes the result of a part to the repository's record."""
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    described = ["git", "describe", "--always", "--dirty=+", "--abbrev=7", "--exclude=*"]
    known[outcome.stage.name] = {
        "about": outcome.stage.about,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "commit": subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip(),
        "machine": f"{platform.machine()}, {CORES} cores, Python {platform.python_version()}",
        "minutes": round(outcome.seconds / 60, 1),
        "result": outcome.result,
        "tests": outcome.passed,
        "failed": [what for what, _ in outcome.failures],
        "unsteady": outcome.unsteady,
        "skipped": outcome.skips,
    }
    RECORD.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")


def _prepare() -> threading.Thread:
    """Downloads a browser and the weights while the checks use the processor."""

    def fetch() -> None:
        for words in (("bash", "scripts/install_browser.sh"), (str(BIN / "triton-sam"), "pull", "sam2:tiny")):
            # Tests report what they miss, and whether that is a failure.
            subprocess.run(words, cwd=ROOT, capture_output=True, check=False)

    thread = threading.Thread(target=fetch)
    thread.start()
    return thread


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    known = {part.name: part for part in LONG}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every part of the long suite, after the tests for commits")
    parser.add_argument("--without-torch", action="store_true", help="leave out the tests that need torch")
    parser.add_argument("--part", action="append", default=[], choices=["commit", *known], help="only this part of it")
    chosen = parser.parse_args()
    names = ["commit", *known] if chosen.all else chosen.part or ["commit"]
    begun, outcomes = time.monotonic(), []
    prepared = _prepare()
    for name in names:
        stages = COMMIT if name == "commit" else (known[name],)
        if chosen.without_torch:  # no mypy: it needs all packages to be installed
            stages = tuple(
                dataclasses.replace(stage, pytest=(*stage.pytest, "-m", "not torch")) for stage in COMMIT[1:]
            )
        part: list[Outcome] = []
        for stage in stages:
            if stage.name != "check":
                prepared.join()
            part.append(run(stage))
        outcomes += part
        if name != "commit" or chosen.all or chosen.part:
            record(_together(name, part))
    if chosen.all or chosen.part:
        subprocess.run([sys.executable, "scripts/generate_docs.py"], cwd=ROOT, check=False)
    title = "make test" if names == ["commit"] else f"make test-all ({', '.join(names)})"
    _say(summary(title, outcomes, time.monotonic() - begun))
    return 1 if any(outcome.failures for outcome in outcomes) else 0


def _together(name: str, outcomes: list[Outcome]) -> Outcome:
    """Sums several stages up as one row of the record."""
    if len(outcomes) == 1:
        return outcomes[0]
    whole = Outcome(Stage(name, "the tests for every commit: `make test`"))
    for outcome in outcomes:
        whole.seconds += outcome.seconds
        whole.passed += outcome.passed
        whole.failures += outcome.failures
        whole.unsteady += outcome.unsteady
        for reason, count in outcome.skips.items():
            whole.skips[reason] = whole.skips.get(reason, 0) + count
    return whole


if __name__ == "__main__":
    sys.exit(main())
