"""The chart's alerts and the autoscaler's query, through promtool of Debian's package prometheus."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.helm_render import CHART, EXAMPLES, only, render
from tests.unit.deploy.tools import MONITORING, tool

pytestmark = pytest.mark.part("deploy")

POD = 'namespace="vision",pod="sam-triton-sam-0"'


@pytest.fixture
def promtool() -> str:
    return tool("promtool", "Debian's prometheus")


def groups(tmp_path: Path) -> dict[str, Any]:
    rule = only(render(tmp_path, "-f", str(EXAMPLES["everything"])), "PrometheusRule")
    return {"groups": rule["spec"]["groups"]}


def run(promtool: str, *words: str) -> None:
    done = subprocess.run([promtool, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def adapter_query() -> str:
    """The adapter's query as it asks Prometheus about the pods of a namespace."""
    (rule,) = yaml.safe_load((CHART.parent / "prometheus-adapter-values.yaml").read_text())["rules"]["custom"]
    query: str = rule["metricsQuery"]
    return (
        query.replace("<<.Series>>", "triton_sam_queue_microseconds_total")
        .replace("<<.LabelMatchers>>", 'namespace="vision",pod=~"sam-triton-sam-0"')
        .replace("<<.GroupBy>>", "pod")
    )


def test_every_alert_has_a_summary_and_a_way_out(tmp_path: Path) -> None:
    rules = [rule for group in groups(tmp_path)["groups"] for rule in group["rules"]]
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "runbook"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_what_is_told_elsewhere_is_told_of_pods(tmp_path: Path) -> None:
    """The two files are written by hand: an alert that only one of them has would be forgotten in the other."""
    elsewhere = yaml.safe_load((MONITORING / "rules.yml").read_text())
    named = {rule["alert"] for group in elsewhere["groups"] for rule in group["rules"]}
    rules = [rule for group in groups(tmp_path)["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == named | {"TritonSamPodRestarts"}


def test_each_alert_fires_on_the_fault_that_it_fires_on_elsewhere(promtool: str, tmp_path: Path) -> None:
    """The tests of deploy/monitoring/rules_test.yml, with a pod's labels, and one for what only pods have."""
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(groups(tmp_path)))
    text = (MONITORING / "rules_test.yml").read_text()
    tests = yaml.safe_load(text.replace('{job="', f'{{{POD},job="'))
    restarts = f'kube_pod_container_status_restarts_total{{{POD},container="server"}}'
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    fired = {"labels": '{alertname="TritonSamPodRestarts"}', "value": 1}
    tests["tests"].append(
        {
            "name": "the container ends every five minutes",
            "interval": "15s",
            "input_series": [{"series": restarts, "values": "0+0.05x240"}],
            "promql_expr_test": [{"expr": firing, "eval_time": "1h", "exp_samples": [fired]}],
        }
    )
    (tmp_path / "rules_test.yml").write_text(yaml.safe_dump(tests))
    run(promtool, "test", "rules", str(tmp_path / "rules_test.yml"))


def test_alerts_and_the_autoscalers_query_see_what_they_shall(promtool: str, tmp_path: Path) -> None:
    """Ten answers a second that waited 400 ms each: 400 ms of queue time. An idle pod has none."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(groups(tmp_path)))
    run(promtool, "check", "rules", str(rules))
    waiting = [
        {"series": f'triton_sam_queue_microseconds_total{{{POD},model="sam2"}}', "values": "0+240000000x30"},
        {"series": f'triton_sam_turns_total{{{POD},model="sam2"}}', "values": "0+600x30"},
        {"series": f'triton_sam_rejected_total{{{POD},model="sam2"}}', "values": "0x30"},
    ]
    idle = [{**series, "values": "100x30"} for series in waiting]
    query = adapter_query()
    labels = {"severity": "warning", "pod": "sam-triton-sam-0", "model": "sam2"}
    summary = "Requests to sam2 on sam-triton-sam-0 wait 400 ms for their turn."
    (queue_rule,) = (rule for rule in groups(tmp_path)["groups"][0]["rules"] if rule["alert"] == "TritonSamQueueSlow")
    expected = {
        "exp_labels": labels,
        "exp_annotations": {"summary": summary, "runbook": queue_rule["annotations"]["runbook"]},
    }

    def case(series: list[dict[str, str]], value: float, alerts: list[Any]) -> dict[str, Any]:
        sample = {"labels": '{pod="sam-triton-sam-0"}', "value": value}
        return {
            "interval": "1m",
            "input_series": series,
            "promql_expr_test": [{"expr": query, "eval_time": "20m", "exp_samples": [sample]}],
            "alert_rule_test": [
                {"eval_time": "20m", "alertname": "TritonSamQueueSlow", "exp_alerts": alerts},
                {"eval_time": "20m", "alertname": "TritonSamModelRejects", "exp_alerts": []},
            ],
        }

    tests = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [case(waiting, 400.0, [expected]), case(idle, 0.0, [])],
    }
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump(tests))
    run(promtool, "test", "rules", str(file))
