"""Fills in deploy/compose/nginx.conf as nginx's image does, for an nginx on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.deploy.tools import DEPLOY, expect_clean, run, tool

TEMPLATE = DEPLOY / "compose" / "nginx.conf"


def write_certificate(folder: Path) -> Path:
    """Writes a temporary certificate for localhost and returns its file."""
    expect_clean(
        run(
            tool("openssl", "Debian's package openssl"),
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", folder / "tls.key", "-out", folder / "tls.crt"),
        )
    )
    return folder / "tls.crt"


def write_configuration(folder: Path, *, upstream: str, port: int, max_body_bytes: int) -> Path:
    """Writes the configuration, with ``folder`` instead of the container's /tmp, and returns its file."""
    values = {
        "UPSTREAM": upstream,
        "TLS_PORT": str(port),
        "TLS_FOLDER": str(folder),
        "MAX_BODY_BYTES": str(max_body_bytes),
    }
    text = TEMPLATE.read_text().replace(" /tmp/", f" {folder}/")
    written = folder / "nginx.conf"
    written.write_text(re.sub(r"\$\{TRITON_SAM_(\w+)\}", lambda match: values[match[1]], text))
    return written
