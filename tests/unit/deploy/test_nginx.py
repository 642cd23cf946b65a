"""The configuration of the compose profile `tls`, read by a real nginx."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.unit.deploy.nginx_files import TEMPLATE, write_certificate, write_configuration
from tests.unit.deploy.tools import COMPOSE_FILES, ROOT, expect_clean, run, tool
from triton_sam.host import free_port
from triton_sam.settings import Settings


def test_nginx_takes_it(tmp_path: Path) -> None:
    nginx = tool("nginx", "Debian's package nginx-light")
    write_certificate(tmp_path)
    written = write_configuration(tmp_path, upstream="127.0.0.1:8080", port=free_port(), max_body_bytes=100663296)
    expect_clean(run(nginx, "-t", "-c", written))
    written.write_text(written.read_text().replace("proxy_read_timeout", "proxy_reed_timeout"))
    assert run(nginx, "-t", "-c", written).returncode != 0


def test_compose_fills_in_every_variable() -> None:
    used = set(re.findall(r"\$\{(\w+)\}", TEMPLATE.read_text()))
    for file in COMPOSE_FILES:
        nginx = yaml.safe_load((ROOT / file).read_text())["services"]["nginx"]
        assert used == {name for name in nginx["environment"] if name.startswith("TRITON_SAM_")}


def test_the_service_ends_a_request_before_nginx_does() -> None:
    text = TEMPLATE.read_text()
    general, chat = (int(seconds) for seconds in re.findall(r"proxy_read_timeout (\d+)s;", text) if seconds != "3600")
    assert general > Settings.model_fields["service_seconds"].default
    assert chat > Settings.model_fields["vlm_seconds"].default
