"""Prometheus' rules by its own tool, and the dashboard; whether metrics exist is asked in tests/integration."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.tools import DEPLOY, MONITORING, ROOT, expect_clean, run, tool

RULES = [rule for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((MONITORING / "grafana" / "dashboards" / "triton-sam.json").read_text())

COUNTED = "triton_sam_service_requests_total"
#: What users ask, without those who look after the server.
USERS = 'route!~"/health|/metrics|/v2/metrics"'


def promtool(*words: str | Path) -> Any:
    return run(tool("promtool", "Debian's package prometheus"), *words)


@pytest.mark.part("deploy")
def test_the_rules_are_rules() -> None:
    expect_clean(promtool("check", "rules", MONITORING / "rules.yml"))


@pytest.mark.part("deploy")
def test_the_configuration(tmp_path: Path) -> None:
    """Its token's file is made for the test: Prometheus wants to see it."""
    (tmp_path / "token").touch()
    shutil.copy(MONITORING / "rules.yml", tmp_path)
    text = (MONITORING / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/triton_sam_token", str(tmp_path / "token")))
    expect_clean(promtool("check", "config", tmp_path / "prometheus.yml"))


@pytest.mark.part("deploy")
def test_each_alert_fires_on_its_fault_and_on_no_other() -> None:
    expect_clean(promtool("test", "rules", MONITORING / "rules_test.yml"))


@pytest.mark.part("deploy")
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_that_never_fires_is_noticed(rule: dict[str, Any], tmp_path: Path) -> None:
    """Each alert has a test of its own: made deaf, it fails."""
    deaf = [other | ({"expr": "vector(0) > 1"} if other is rule else {}) for other in RULES]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "deaf", "rules": deaf}]}))
    shutil.copy(MONITORING / "rules_test.yml", tmp_path)
    done = promtool("test", "rules", tmp_path / "rules_test.yml")
    assert done.returncode != 0
    assert rule["alert"] in done.stdout + done.stderr


@pytest.mark.part("deploy")
def test_shares_are_shares_of_users_requests(tmp_path: Path) -> None:
    """Without the filter, alerts that should fire are thinned out by health checks, and promtool notices."""
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    shares = [expr for expr in [*panels, *(rule["expr"] for rule in RULES)] if " / sum" in expr and COUNTED in expr]
    assert len(shares) == 4
    for expr in shares:
        assert expr.count(COUNTED) == expr.count(USERS) == 2, expr
    text = (MONITORING / "rules.yml").read_text()
    (tmp_path / "rules.yml").write_text(text.replace(USERS + ",", "").replace(USERS, ""))
    shutil.copy(MONITORING / "rules_test.yml", tmp_path)
    done = promtool("test", "rules", tmp_path / "rules_test.yml")
    assert done.returncode != 0
    assert {"TritonSamRefusing", "TritonSamErrors"} <= set(re.findall(r"TritonSam\w+", done.stdout + done.stderr))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_each_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert len(rule["annotations"]["runbook"].split()) >= 10
    assert rule["annotations"]["summary"].endswith(".")


def test_the_dashboard_shows_what_it_shall() -> None:
    titles = {panel["title"] for panel in DASHBOARD["panels"]}
    assert titles >= {
        "Requests by status", "Latency", "Queue time", "Cache hits", "Cache", "Encodes and decodes",
        "Refusals and cancellations", "Restarts and reloads", "GPU memory", "GPU utilisation",
    }  # fmt: skip
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_dashboards_panels_do_not_overlap() -> None:
    covered: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & covered, panel["title"]
        assert place["x"] + place["w"] <= 24
        covered |= cells


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    provisioning = MONITORING / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    used = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])}
    assert used == {source["uid"]}
    folder = yaml.safe_load((provisioning / "dashboards" / "triton-sam.yml").read_text())["providers"][0]["options"]
    mounts = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]["volumes"]
    assert f"./deploy/monitoring/grafana/dashboards:{folder['path']}:ro" in mounts


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("**/*.json")), ids=lambda file: file.name)
def test_json_is_json(file: Path) -> None:
    json.loads(file.read_text())
