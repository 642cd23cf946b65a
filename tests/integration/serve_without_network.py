"""Run without a network (except loopback): sets up from copied files, serves, and prints a mask's score."""

from __future__ import annotations

import base64
import fcntl
import json
import socket
import struct
import sys
import urllib.request
from pathlib import Path

from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.server.selection import prepare
from triton_sam.serving import Ports, ServingOptions, serving
from triton_sam.settings import get_settings

_SIOCSIFFLAGS, _UP = 0x8914, 0x1
#: A documentation address (RFC 5737): unreachable without a network, and without a response if there is one.
_ELSEWHERE = ("192.0.2.1", 443)


def main(photograph: Path, x: float, y: float) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP))
    interfaces = [name for _, name in socket.if_nameindex()]
    reachable = True
    try:
        socket.create_connection(_ELSEWHERE, timeout=5).close()
    except OSError as error:
        reachable = error.errno is None
    settings = get_settings()
    served = prepare([get_spec(DEFAULT_MODEL).id], settings, None)
    with serving(ServingOptions(served.repository, served.segmenters, settings, ports=Ports(0, 0, 0, 0))) as running:
        image = base64.b64encode(photograph.read_bytes()).decode()
        body = json.dumps({"image": image, "points": [[x, y]], "format": "rle"}).encode()
        request = urllib.request.Request(
            f"{running.urls['service']}/v1/segment", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
            result = json.loads(answer.read())
    report = {"interfaces": interfaces, "reachable": reachable, "score": result["score"], "model": result["model"]}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
