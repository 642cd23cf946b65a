"""The compose files: what the specification allows, and what we promise of every container."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.unit.deploy.tools import COMPOSE_FILES, ROOT, expect_clean, run, tool
from triton_sam.server.command import EXIT_SECONDS
from triton_sam.service.uvicorn_thread import SHUTDOWN_SECONDS
from triton_sam.settings import Settings

SERVICES = ("triton", "nginx", "prometheus", "grafana")
EACH = [(file, service) for file in COMPOSE_FILES for service in SERVICES]


def compose(file: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / file).read_text()))


def service(file: str, name: str) -> dict[str, Any]:
    return dict(compose(file)["services"][name])


def filled(text: str, **variables: str) -> str:
    """A value as compose reads it where these variables are set."""
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: variables.get(match[1]) or match[2], text)
    return re.sub(r"\$\{(\w+):\+([^}]*)\}", lambda match: match[2] if variables.get(match[1]) else "", text)


def defaults(text: str) -> str:
    return filled(text)


@pytest.mark.part("deploy")
@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_the_specification_allows_it(file: str) -> None:
    checker = tool("check-jsonschema", "check-jsonschema from PyPI")
    expect_clean(run(checker, "--builtin-schema", "vendor.compose-spec", ROOT / file))


@pytest.mark.part("deploy")
def test_the_schema_does_refuse(tmp_path: Any) -> None:
    broken = tmp_path / "docker-compose.yml"
    broken.write_text("services: {triton: {image: x, shm_sise: 2gb}}\n")
    checker = tool("check-jsonschema", "check-jsonschema from PyPI")
    assert run(checker, "--builtin-schema", "vendor.compose-spec", broken).returncode != 0


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_names_that_users_have(file: str) -> None:
    assert set(compose(file)["services"]) == set(SERVICES)
    triton = service(file, "triton")
    assert triton["container_name"] == "sam2-triton-server"
    assert {str(port).rpartition(":")[2] for port in triton["ports"]} == {"8000", "8001", "8002", "8080"}
    profiles = {name: service(file, name).get("profiles") for name in SERVICES}
    assert profiles == {
        "triton": None,
        "nginx": ["tls"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }


@pytest.mark.parametrize(("file", "name"), EACH)
def test_every_container_is_shut_in(file: str, name: str) -> None:
    made = service(file, name)
    assert made["read_only"] is True
    assert made["cap_drop"] == ["ALL"]
    assert made["security_opt"] == ["no-new-privileges:true"]
    assert int(made["user"].partition(":")[0]) > 0, "root"
    for opening in ("privileged", "cap_add", "network_mode", "pid", "ipc", "devices"):
        assert opening not in made
    assert not [mount for mount in made["volumes"] if "docker.sock" in mount]
    own = [mount for mount in made["volumes"] if mount.startswith((".", "${"))]
    assert all(mount.endswith(":ro") for mount in own), "what comes from the host is only read"


@pytest.mark.parametrize(("file", "name"), EACH)
def test_every_container_is_watched_and_comes_back(file: str, name: str) -> None:
    made = service(file, name)
    assert made["restart"] == "unless-stopped"
    assert made["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert made["logging"]["options"]["max-size"], "a log without an end fills the disk"


@pytest.mark.parametrize(("file", "name"), EACH)
def test_images_are_pinned(file: str, name: str) -> None:
    tag = service(file, name)["image"].partition(":")[2]
    assert re.match(r"v?\d+\.\d+\.\d+", tag), f"{name} runs whatever {tag or 'latest'} is that day"


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_only_tls_is_open_to_the_network(file: str) -> None:
    for name in SERVICES:
        for port in service(file, name)["ports"]:
            address = defaults(port).split(":")[0]
            assert address == ("0.0.0.0" if name == "nginx" else "127.0.0.1"), f"{name}: {port}"


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_the_door_to_the_network_needs_a_token(file: str) -> None:
    nginx = service(file, "nginx")
    script = nginx["entrypoint"][2].replace("$$", "$")
    assert defaults(nginx["environment"]["TOKEN_IS_SET"]) == ""
    refused = run("/bin/sh", "-c", script, TOKEN_IS_SET="")
    assert refused.returncode == 1
    assert "TRITON_SAM_TOKEN" in refused.stderr
    admitted = run("/bin/sh", "-c", script, TOKEN_IS_SET="yes")
    assert "docker-entrypoint.sh" in admitted.stderr, "it goes on to nginx, which only its container has"


@pytest.mark.parametrize("file", COMPOSE_FILES)
@pytest.mark.parametrize("variable", ["TRITON_SAM_TOKEN", "TRITON_SAM_TOKEN_FILE", "TRITON_SAM_TOKENS_FILE"])
def test_each_way_to_set_a_token_opens_that_door(file: str, variable: str) -> None:
    assert filled(service(file, "nginx")["environment"]["TOKEN_IS_SET"], **{variable: "./given"}) == "yes"


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_a_file_of_tokens_is_mounted_where_the_service_looks(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = service(file, "triton")
    named = triton["environment"]["TRITON_SAM_TOKENS_FILE"]
    monkeypatch.setenv("TRITON_SAM_TOKENS_FILE", defaults(named))
    assert Settings().tokens_file is None
    folder, _, secret = filled(named, TRITON_SAM_TOKENS_FILE="./tokens").rpartition("/")
    assert folder == "/run/secrets"
    assert secret in triton["secrets"]
    source = compose(file)["secrets"][secret]["file"]
    assert filled(source, TRITON_SAM_TOKENS_FILE="./tokens") == "./tokens"
    assert defaults(source) == "/dev/null"


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_the_service_and_nginx_take_the_same_bodies(file: str) -> None:
    limits = {service(file, name)["environment"]["TRITON_SAM_MAX_BODY_BYTES"] for name in ("triton", "nginx")}
    assert len(limits) == 1
    assert int(defaults(limits.pop())) == Settings.model_fields["max_body_bytes"].default


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_there_is_room_for_tensors_and_time_to_finish(file: str) -> None:
    triton = service(file, "triton")
    assert defaults(triton["shm_size"]) == {"docker-compose.yml": "4gb", "docker-compose-cpu.yml": "2gb"}[file]
    assert filled(triton["shm_size"], SHM_SIZE="8gb") == "8gb"
    assert int(triton["stop_grace_period"].rstrip("s")) > SHUTDOWN_SECONDS + EXIT_SECONDS, (
        "at worst one after the other"
    )
    assert "weights:/data" in triton["volumes"]
    assert any(mount.startswith("/data/run:") for mount in triton["tmpfs"])


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_what_is_mounted_is_there(file: str) -> None:
    for name in SERVICES:
        for mount in service(file, name)["volumes"]:
            source = defaults(mount).split(":")[0]
            if source.startswith("./") and "tls" not in source:  # certificates are the user's
                assert (ROOT / source).exists(), mount


def test_the_two_files_differ_in_the_device_alone() -> None:
    gpu, cpu = (compose(file) for file in COMPOSE_FILES)
    gpu_triton, cpu_triton = gpu["services"].pop("triton"), cpu["services"].pop("triton")
    assert gpu == cpu
    del gpu_triton["deploy"]
    for name in ("TRITON_SAM_DEVICES", "CUDA_VISIBLE_DEVICES"):
        del gpu_triton["environment"][name]
    assert cpu_triton["environment"].pop("TRITON_SAM_DEVICE") == "cpu"
    for triton in (gpu_triton, cpu_triton):
        del triton["image"], triton["build"], triton["shm_size"], triton["environment"]["TRITON_SAM_CACHE_BYTES"]
    assert gpu_triton == cpu_triton


def test_all_gpus_are_used_or_those_that_are_chosen() -> None:
    triton = service("docker-compose.yml", "triton")
    (device,) = triton["deploy"]["resources"]["reservations"]["devices"]
    count = device.pop("count")
    assert device == {"driver": "nvidia", "capabilities": ["gpu"]}
    assert (defaults(count), filled(count, GPU_COUNT="2")) == ("all", "2")
    chosen = triton["environment"]["TRITON_SAM_DEVICES"]
    assert Settings(devices=defaults(chosen)).devices == ""
    assert Settings(devices=filled(chosen, TRITON_SAM_DEVICES="0, 3")).devices == "0,3"
    assert triton["environment"]["CUDA_VISIBLE_DEVICES"] is None, "set to nothing, it would hide every GPU"


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_processes_are_the_programs_own_choice_unless_set(file: str) -> None:
    environment = service(file, "triton")["environment"]
    for name in ("processes", "service_processes"):
        variable = f"TRITON_SAM_{name.upper()}"
        assert int(defaults(environment[variable])) == Settings.model_fields[name].default
        assert filled(environment[variable], **{variable: "4"}) == "4"
