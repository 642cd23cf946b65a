"""The shipped configurations of HAProxy and nginx as these programs themselves read them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.faults.proxies import HAPROXY_CONFIG, NGINX_CONFIG, nginx_config, program
from triton_sam.settings import Settings


@pytest.mark.part("deploy")
def test_haproxy_takes_its_configuration() -> None:
    checked = subprocess.run([program("haproxy"), "-c", "-f", str(HAPROXY_CONFIG)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr


@pytest.mark.part("deploy")
def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    path, _ = nginx_config(tmp_path, ["127.0.0.1:1", "127.0.0.1:2"])
    checked = subprocess.run([program("nginx"), "-t", "-e", "stderr", "-c", str(path)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr


def test_both_let_through_what_the_service_takes() -> None:
    most = Settings().max_body_bytes
    assert f"gt {most} " in HAPROXY_CONFIG.read_text()
    assert f"client_max_body_size {most // 2**20}m;" in NGINX_CONFIG.read_text()


def test_all_backends_of_haproxy_know_the_same_servers_by_the_same_numbers() -> None:
    """A server's number decides which images are its own: by whatever port a client comes, they have to meet."""
    sections = re.split(r"^(?=frontend|backend|defaults|global)", HAPROXY_CONFIG.read_text(), flags=re.MULTILINE)
    known = {
        section.split()[1]: re.findall(r"^    server (sam\d+) .* id (\d+)", section, re.MULTILINE)
        for section in sections
        if re.search(r"^    balance hash", section, re.MULTILINE)
    }
    assert set(known) == {"masks", "answers", "sockets", "triton_http", "triton_grpc"}
    assert set(map(tuple, known.values())) == {(("sam1", "1"), ("sam2", "2"))}


def test_haproxy_always_has_room_for_the_way_inside() -> None:
    """A client's connection that finds none there would wait for those that wait themselves."""
    sections = re.split(r"^(?=frontend|backend|defaults|global)", HAPROXY_CONFIG.read_text(), flags=re.MULTILINE)
    most = {
        " ".join(section.split()[:2]) if section.startswith("frontend") else "global": int(limit[1])
        for section in sections
        if section.startswith(("frontend", "global"))
        and (limit := re.search(r"^    maxconn (\d+)$", section, re.MULTILINE))
    }
    together = most.pop("global")
    assert set(most) == {f"frontend {name}" for name in ("service", "choice", "triton_http", "triton_grpc", "stats")}
    assert most["frontend choice"] >= most["frontend service"]
    assert sum(most.values()) < together
