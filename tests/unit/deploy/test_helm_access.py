"""The chart's tokens and network: who may reach the service, and where secrets are."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.unit.deploy.helm_render import (
    EXAMPLES,
    Manifest,
    everything,
    of_kind,
    only,
    render,
    server_of,
    server_variables,
    token_sources,
)
from tests.unit.deploy.tools import ROOT, run

pytestmark = pytest.mark.part("deploy")

EXAMPLE_TOKEN = "please-change-me"
#: As the Dockerfile names it: it reads the token, then becomes `triton-sam`.
ENTRYPOINT = "triton-sam-entrypoint"


def test_the_token_stands_in_a_secret_and_nowhere_else(manifests: list[Manifest], example: str) -> None:
    (reference,) = token_sources(manifests)
    others = [manifest for manifest in manifests if manifest["kind"] != "Secret"]
    assert EXAMPLE_TOKEN not in json.dumps(others)
    assert not any("TOKEN" in name for name in only(manifests, "ConfigMap")["data"])
    if example == "everything":
        secret = only(manifests, "Secret")
        assert base64.b64decode(secret["data"]["token"]).decode() == EXAMPLE_TOKEN
        assert reference == (secret["metadata"]["name"], "token", "/run/secrets/triton-sam/token")
    else:
        assert not of_kind(manifests, "Secret")
        key = "bearer" if example == "shared" else "token"
        assert reference == ("sam-token", key, "/run/secrets/triton-sam/token")
    assert server_variables(manifests)["TRITON_SAM_TOKEN_FILE"] == reference[2]


def test_callers_may_have_tokens_of_their_own(tmp_path: Path) -> None:
    named = ("callers", "tokens", "/run/secrets/triton-sam/tokens")
    alone = render(tmp_path, "--set", "auth.tokensSecret=callers")
    assert token_sources(alone) == [named]
    assert server_variables(alone)["TRITON_SAM_TOKENS_FILE"] == named[2]
    assert "TRITON_SAM_TOKEN_FILE" not in server_variables(alone)
    both = everything(tmp_path, "--set", "auth.tokensSecret=callers,auth.tokensSecretKey=list")
    assert [source[:2] for source in token_sources(both)] == [("sam-triton-sam-token", "token"), ("callers", "list")]


@pytest.mark.parametrize(("token", "code"), [("secret", 0), ("", 1), ("\n", 1)])
def test_an_empty_token_secret_is_refused(token: str, code: int, tmp_path: Path) -> None:
    """The server's own command line, with the image's entry point and a `triton-sam` that only ends well."""
    manifests = render(tmp_path, "-f", str(EXAMPLES["gpu"]))
    assert server_of(manifests)["command"] == [ENTRYPOINT]
    program, secret = tmp_path / "triton-sam", tmp_path / "token"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    secret.write_text(token)
    variables = {"TRITON_SAM_TOKEN_FILE": str(secret), "TRITON_SAM_TOKEN": "", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = run(ROOT / "deploy" / "compose" / "entrypoint.sh", *server_of(manifests)["args"], **variables)
    assert done.returncode == code, done.stderr
    assert ("is empty" in done.stderr) is bool(code)


def test_the_network_sees_the_service_alone(manifests: list[Manifest], example: str) -> None:
    policy = only(manifests, "NetworkPolicy", "triton-sam")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    outside = [rule for rule in policy["ingress"] if rule.get("from") != [{"podSelector": {}}]]
    assert [port["port"] for rule in outside for port in rule["ports"]] == [8080]
    inside = [rule for rule in policy["ingress"] if rule not in outside]
    ports = [port["port"] for rule in inside for port in rule["ports"]]
    arguments = only(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["args"]
    if example == "everything":
        assert ports == [8000, 8001, 8002]
        assert "--triton-host" in arguments
    else:
        assert ports == []
        assert "--triton-host" not in arguments


def test_pods_reach_nothing_private(manifests: list[Manifest]) -> None:
    for policy in of_kind(manifests, "NetworkPolicy"):
        for rule in policy["spec"]["egress"]:
            for peer in rule.get("to", []):
                if "ipBlock" in peer:
                    assert {"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} <= set(
                        peer["ipBlock"]["except"]
                    )
            if "to" not in rule:
                assert {port["port"] for port in rule["ports"]} == {53}


def test_prometheus_is_allowed_by_a_strict_network_policy(tmp_path: Path) -> None:
    policy = only(everything(tmp_path), "NetworkPolicy")["spec"]
    peers = [peer["namespaceSelector"]["matchLabels"] for peer in policy["ingress"][0]["from"]]
    assert {"kubernetes.io/metadata.name": "monitoring"} in peers


def test_metrics_are_read_through_the_service_with_the_token(tmp_path: Path) -> None:
    manifests = everything(tmp_path)
    monitor = only(manifests, "ServiceMonitor")["spec"]
    assert [endpoint["path"] for endpoint in monitor["endpoints"]] == ["/metrics", "/v2/metrics"]
    secret = only(manifests, "Secret")["metadata"]["name"]
    for endpoint in monitor["endpoints"]:
        assert endpoint["authorization"]["credentials"] == {"name": secret, "key": "token"}
    watched = only(manifests, "Service", "-pods")["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= watched.items()
    matching = [
        service
        for service in of_kind(manifests, "Service")
        if monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ]
    assert len(matching) == 1, "each pod would be counted twice"


def test_a_changed_token_or_setting_restarts_the_pods(tmp_path: Path) -> None:
    def marks(*words: str) -> Manifest:
        pod: Manifest = only(everything(tmp_path, *words), "StatefulSet")["spec"]["template"]["metadata"]
        return dict(pod["annotations"])

    before = marks()
    assert marks("--set", "auth.token=other")["checksum/token"] != before["checksum/token"]
    assert marks("--set-string", "settings.THREADS=4")["checksum/settings"] != before["checksum/settings"]
    assert marks() == before
