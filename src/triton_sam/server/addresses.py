"""Addresses and ports of the servers that this package starts."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from triton_sam.errors import SetupError
from triton_sam.server import host


def reach_of(bind: str) -> str:
    """The address by which this machine reaches a server that listens on ``bind``."""
    return "127.0.0.1" if bind == "0.0.0.0" else bind


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def choose_ports(wanted: Sequence[int], bind: str) -> list[int]:
    """``wanted`` with a free port for each 0, all different; SetupError if a port is named twice."""
    reach = bind if is_loopback(bind) else "127.0.0.1"
    taken = [port for port in wanted if port]
    for port in taken:
        if taken.count(port) > 1:
            raise SetupError(f"port {port} is named twice: choose another for one of the servers")
    chosen = []
    for port in wanted:
        while port == 0:
            candidate = host.free_port(reach)
            if candidate not in taken:
                port = candidate
                taken.append(port)
        chosen.append(port)
    return chosen
