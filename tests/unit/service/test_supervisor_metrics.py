from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from triton_sam.service.telemetry.supervisor_metrics import SupervisorCollector


def figures(status: dict[str, object]) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(SupervisorCollector(lambda: status))
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines if not line.startswith("#"))}


def test_the_supervisors_counters() -> None:
    assert figures({"state": "ready", "restarts": 2, "reloads": 3, "missing": ("sam1",)}) == {
        "triton_sam_supervisor_ready": 1.0,
        "triton_sam_supervisor_missing": 1.0,
        "triton_sam_supervisor_restarts_total": 2.0,
        "triton_sam_supervisor_reloads_total": 3.0,
    }


def test_whatever_is_not_ready_is_not() -> None:
    for state in ("starting", "recovering", "stopping", "stopped", "failed"):
        assert figures({"state": state})["triton_sam_supervisor_ready"] == 0.0


def test_the_status_is_read_at_each_scrape() -> None:
    status: dict[str, object] = {"state": "ready", "restarts": 0}
    registry = CollectorRegistry()
    registry.register(SupervisorCollector(lambda: status))
    status["restarts"] = 1
    assert b"restarts_total 1.0" in generate_latest(registry)
