"""The configuration of the compose profile `tls`, read by a real nginx."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml

from tests.unit.deploy.nginx_files import TEMPLATE, write_certificate, write_configuration
from tests.unit.deploy.tools import COMPOSE_FILES, ROOT, expect_clean, run, tool
from triton_sam.server.host import free_port
from triton_sam.settings import Settings

PATIENCE = 30.0


@pytest.mark.part("deploy")
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
    found = [int(seconds) for seconds in re.findall(r"proxy_read_timeout (\d+)s;", text) if seconds != "3600"]
    general, chat, everything = found
    assert general > Settings.model_fields["service_seconds"].default
    assert chat > Settings.model_fields["vlm_seconds"].default
    assert everything > Settings.model_fields["service_seconds"].default


class Speaker(BaseHTTPRequestHandler):
    """Says its second word only after the first has been heard."""

    heard = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: first\n\n")
        self.wfile.flush()
        if self.heard.wait(PATIENCE):
            self.wfile.write(b"data: second\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test looks at the client."""


@pytest.mark.part("deploy")
def test_words_of_an_answer_pass_one_by_one(tmp_path: Path) -> None:
    """Kept back until the end, the second would never come: it waits for the first to arrive."""
    nginx = tool("nginx", "Debian's package nginx-light")
    context = ssl.create_default_context(cafile=str(write_certificate(tmp_path)))
    port = free_port()
    with ThreadingHTTPServer(("127.0.0.1", 0), Speaker) as upstream:
        speaking = threading.Thread(target=upstream.serve_forever)
        speaking.start()
        address = f"127.0.0.1:{upstream.server_port}"
        written = write_configuration(tmp_path, upstream=address, port=port, max_body_bytes=1_000_000)
        process = subprocess.Popen([nginx, "-c", str(written), "-g", "daemon off;"], cwd=tmp_path)
        try:
            wait_for_port(port)
            url = f"https://localhost:{port}/v1/chat/completions"
            with httpx.stream("POST", url, json={}, verify=context, trust_env=False, timeout=PATIENCE / 3) as answer:
                lines = answer.iter_lines()
                assert next(lines) == "data: first"
                Speaker.heard.set()
                assert [line for line in lines if line] == ["data: second"]
        finally:
            Speaker.heard.set()
            process.terminate()
            process.wait(timeout=PATIENCE)
            upstream.shutdown()
            speaking.join()


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
