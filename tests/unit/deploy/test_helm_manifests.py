"""Every manifest of every example is one that Kubernetes takes, and has what the chart promises."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer.main
import yaml

from tests.unit.deploy.helm_render import (
    CHART,
    EXAMPLES,
    Manifest,
    containers,
    everything,
    helm,
    of_kind,
    only,
    pod_specs,
    render,
)
from tests.unit.deploy.tools import COMPOSE_FILES, ROOT
from triton_sam.cli.app import app
from triton_sam.engines.device_list import MOST_PROCESSES
from triton_sam.models.catalog import CATALOG
from triton_sam.models.vlm_catalog import VLM_CATALOG
from triton_sam.server.command import EXIT_SECONDS
from triton_sam.service.uvicorn_thread import SHUTDOWN_SECONDS
from triton_sam.settings import Settings

pytestmark = pytest.mark.part("deploy")

#: The oldest that the chart allows, and the newest that the package knows.
KUBERNETES = ("1.27", "1.37")
#: Not Kubernetes' own: their schemas come with the Prometheus operator, and are not checked here.
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
#: As the Dockerfile names it: it reads the token, then becomes `triton-sam`.
ENTRYPOINT = "triton-sam-entrypoint"


def test_four_sets_of_values_are_tried() -> None:
    assert sorted(EXAMPLES) == ["cpu", "everything", "gpu", "shared"]


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_every_manifest(manifests: list[Manifest], version: str) -> None:
    import kubernetes_validate

    checked = [manifest for manifest in manifests if manifest["kind"] not in FOREIGN]
    assert len(checked) >= 7
    for manifest in checked:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_check_notices_a_wrong_manifest(tmp_path: Path) -> None:
    import kubernetes_validate

    stateful = only(render(tmp_path, "-f", str(EXAMPLES["gpu"])), "StatefulSet")
    stateful["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenessprobe"):
        kubernetes_validate.validate(stateful, KUBERNETES[1], strict=True)


def test_helm_finds_nothing_to_complain_about(example: str, tmp_path: Path) -> None:
    done = helm("lint", "--strict", str(CHART), "-f", str(EXAMPLES[example]), home=tmp_path)
    assert done.returncode == 0, done.stdout


def test_containers_run_without_privileges(manifests: list[Manifest]) -> None:
    for pod in pod_specs(manifests):
        assert pod["automountServiceAccountToken"] is False
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["fsGroup"] == 1000
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(pod.get(shared) for shared in ("hostNetwork", "hostPID", "hostIPC"))
        for container in containers(pod):
            rights = container["securityContext"]
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["capabilities"] == {"drop": ["ALL"]}
    assert only(manifests, "ServiceAccount")["automountServiceAccountToken"] is False


def test_writable_folders_are_mounted(manifests: list[Manifest]) -> None:
    for pod in pod_specs(manifests):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in containers(pod):
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            assert {"/data", "/tmp"} <= set(mounts)
            environment = {entry["name"]: entry.get("value") for entry in container["env"]}
            assert environment["TRITON_SAM_HOME"] == "/data"
    server = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in server["containers"][0]["volumeMounts"]
    volumes = {volume["name"]: volume for volume in server["volumes"]}
    assert volumes["shared-memory"]["emptyDir"]["medium"] == "Memory"


def test_each_pod_has_data_of_its_own(manifests: list[Manifest]) -> None:
    """Two servers in one home would sweep away each other's run-time files."""
    claims = only(manifests, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert [claim["metadata"]["name"] for claim in claims] == ["data"]
    assert claims[0]["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_probes_ask_the_service(manifests: list[Manifest]) -> None:
    server = only(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    for probe in ("startupProbe", "readinessProbe"):
        assert server[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert "/health" in server["livenessProbe"]["exec"]["command"][-1]
    ready_seconds = float(only(manifests, "ConfigMap")["data"]["TRITON_SAM_READY_SECONDS"])
    allowed = server["startupProbe"]["periodSeconds"] * server["startupProbe"]["failureThreshold"]
    assert allowed > ready_seconds, "the probe must not end a start that the server itself still allows"


@pytest.mark.parametrize("status", [200, 503])
def test_the_liveness_probe_takes_any_answer(status: int, tmp_path: Path) -> None:
    assert _live(tmp_path, status) == 0


def test_the_liveness_probe_notices_silence(tmp_path: Path) -> None:
    assert _live(tmp_path, None) != 0


def _live(tmp_path: Path, status: int | None) -> int:
    """The exit code of the probe's own command against a service that answers so; None: that hangs up."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if status is not None:
                self.send_response(status)
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = only(render(tmp_path, "-f", str(EXAMPLES["gpu"])), "StatefulSet")
    command = server["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]
    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            code = command[-1].replace("8080", str(listening.server_port))
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=30)
        finally:
            listening.shutdown()
            thread.join()
    return done.returncode


def test_each_start_has_a_process_id_of_its_own(manifests: list[Manifest]) -> None:
    """What carries the ids of dead servers is swept away; one that is always number 1 would take it for its own."""
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["shareProcessNamespace"] is True
    assert {"name": "run", "mountPath": "/data/run"} in pod["containers"][0]["volumeMounts"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert "emptyDir" in volumes["run"], "a new pod begins with the same ids, so nothing of the old one's may be there"


def test_the_image_is_one_that_is_built(tmp_path: Path) -> None:
    for example, file in (("gpu", COMPOSE_FILES[0]), ("cpu", COMPOSE_FILES[1])):
        built = yaml.safe_load((ROOT / file).read_text())["services"]["triton"]["image"]
        for pod in pod_specs(render(tmp_path, "-f", str(EXAMPLES[example]))):
            assert {container["image"] for container in containers(pod)} == {built}


def test_without_setup_no_job_writes_and_nothing_may_download(tmp_path: Path) -> None:
    manifests = render(tmp_path, "-f", str(EXAMPLES["shared"]), "--set", "models.setup=false")
    assert not of_kind(manifests, "Job")
    (policy,) = of_kind(manifests, "NetworkPolicy")
    assert not any("ipBlock" in peer for rule in policy["spec"]["egress"] for peer in rule.get("to", []))


def test_the_configmap_holds_settings_of_the_program(manifests: list[Manifest]) -> None:
    data = only(manifests, "ConfigMap")["data"]
    names = {f"TRITON_SAM_{name.upper()}" for name in Settings.model_fields}
    assert set(data) <= names
    fields = {name.removeprefix("TRITON_SAM_").lower(): value for name, value in data.items()}
    assert Settings(**fields).ready_seconds == float(data["TRITON_SAM_READY_SECONDS"])


def test_commands_are_those_of_the_program(manifests: list[Manifest]) -> None:
    program: Any = typer.main.get_command(app)
    for pod in pod_specs(manifests):
        for container in containers(pod):
            assert container["command"] == [ENTRYPOINT if container["name"] == "server" else "triton-sam"]
            name, *arguments = container["args"]
            command = program.commands[name]
            context = command.make_context(name, list(arguments), resilient_parsing=False)
            named = context.params.get("model_ids") or context.params.get("names") or [context.params.get("model_id")]
            assert all(each in CATALOG or each in VLM_CATALOG for each in named if each)
            if name == "serve":
                assert context.params["host"] == "0.0.0.0"


def test_a_disruption_takes_one_pod_at_a_time(manifests: list[Manifest]) -> None:
    budget = only(manifests, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    labels = only(manifests, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()


def test_services_find_the_pods_and_the_pods_alone(manifests: list[Manifest]) -> None:
    stateful = only(manifests, "StatefulSet")
    assert stateful["spec"]["serviceName"] == only(manifests, "Service", "-pods")["metadata"]["name"]
    assert only(manifests, "Service", "-pods")["spec"]["clusterIP"] == "None"
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for port in stateful["spec"]["template"]["spec"]["containers"][0]["ports"]}
    for service in of_kind(manifests, "Service"):
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for job in of_kind(manifests, "Job"):
        assert not stateful["spec"]["selector"]["matchLabels"].items() <= (
            job["spec"]["template"]["metadata"]["labels"].items()
        ), "requests would be sent to the set-up job"


def test_a_gpu_is_asked_for_where_there_shall_be_one(manifests: list[Manifest], example: str) -> None:
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    if example == "cpu":
        assert "nvidia.com/gpu" not in limits
        assert "nodeSelector" not in pod
        assert "tolerations" not in pod
        assert only(manifests, "ConfigMap")["data"]["TRITON_SAM_DEVICE"] == "cpu"
    else:
        gpus = 2 if example == "everything" else 1
        assert limits["nvidia.com/gpu"] == gpus
        assert limits["memory"] == f"{16 * gpus}Gi"
        assert pod["containers"][0]["resources"]["requests"] == {"cpu": str(4 * gpus), "memory": f"{8 * gpus}Gi"}
        assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
        assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"


def shared_memory(manifests: list[Manifest]) -> str:
    volumes = only(manifests, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    (size,) = (volume["emptyDir"]["sizeLimit"] for volume in volumes if volume["name"] == "shared-memory")
    return str(size)


def test_shared_memory_grows_with_the_processes_of_each_segmenter(tmp_path: Path) -> None:
    assert shared_memory(render(tmp_path, "-f", str(EXAMPLES["gpu"]))) == "1Gi"
    two_models = 2 * (MOST_PROCESSES - 1) * 256  # the number of a pod's processes is not known before it runs
    assert shared_memory(everything(tmp_path)) == f"{1024 + two_models}Mi"
    chosen = render(tmp_path, "--set", "auth.anonymous=true,gpus=4", "--set-string", "settings.PROCESSES=3")
    assert shared_memory(chosen) == f"{1024 + 2 * 256}Mi"
    assert only(chosen, "ConfigMap")["data"]["TRITON_SAM_PROCESSES"] == "3"


def test_pods_are_spread(manifests: list[Manifest]) -> None:
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    terms = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert terms[0]["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "topology.kubernetes.io/zone"


def test_what_is_in_flight_may_finish(manifests: list[Manifest]) -> None:
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    pause = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1])
    least = json.loads((CHART / "values.schema.json").read_text())["properties"]["terminationGracePeriodSeconds"]
    assert pod["terminationGracePeriodSeconds"] > least["minimum"] >= pause + SHUTDOWN_SECONDS + EXIT_SECONDS


def test_models_are_set_up_before_a_pod_serves(manifests: list[Manifest], example: str) -> None:
    pod = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    before = [container["name"] for container in pod.get("initContainers", [])]
    expected = {
        "gpu": ["setup-segmenters"],
        "cpu": ["setup-segmenters"],
        "everything": ["setup-segmenters", "setup-vlms", "pull-vlm-0"],
        "shared": [],
    }
    assert before == expected[example]


def test_a_shared_repository_is_written_by_a_job_and_read_by_the_pods(tmp_path: Path) -> None:
    manifests = render(tmp_path, "-f", str(EXAMPLES["shared"]))
    folder = "/models/production/model_repository"
    server = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    arguments = server["containers"][0]["args"]
    assert arguments[arguments.index("--model-repository") + 1] == folder
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in server["containers"][0]["volumeMounts"]
    job = only(manifests, "Job", "-setup-1")["spec"]["template"]["spec"]
    setup = job["initContainers"][0]["args"]
    assert setup[setup.index("--model-repository") + 1] == folder
    claims = [volume["persistentVolumeClaim"] for volume in job["volumes"] if volume["name"] == "models"]
    assert claims == [{"claimName": "models"}]
    internet = [
        policy["metadata"]["name"]
        for policy in of_kind(manifests, "NetworkPolicy")
        if any("ipBlock" in peer for rule in policy["spec"]["egress"] for peer in rule.get("to", []))
    ]
    assert internet == ["sam-triton-sam-setup"], "pods that only read need no way out"


def test_the_autoscaler_looks_at_queue_time(tmp_path: Path) -> None:
    manifests = everything(tmp_path)
    scaler = only(manifests, "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == only(manifests, "StatefulSet")["metadata"]["name"]
    assert "replicas" not in only(manifests, "StatefulSet")["spec"], "it would be set back at every upgrade"
    (metric,) = scaler["metrics"]
    adapter = yaml.safe_load((CHART.parent / "prometheus-adapter-values.yaml").read_text())
    (rule,) = adapter["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 8)
