from __future__ import annotations

import pytest

from triton_sam.errors import SetupError
from triton_sam.server import host
from triton_sam.server.addresses import choose_ports, is_loopback


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.7", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_is_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


def test_named_ports_stay() -> None:
    assert choose_ports((1, 2, 3, 4), "127.0.0.1") == [1, 2, 3, 4]


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_free_ports_are_four_different_ones(bind: str) -> None:
    chosen = choose_ports((0, 0, 0, 0), bind)
    assert len(set(chosen)) == 4
    assert all(1024 <= port <= 65535 for port in chosen)


def test_a_free_port_is_never_one_that_is_taken_already(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = iter([7, 9, 9, 7, 11, 9, 13])
    monkeypatch.setattr(host, "free_port", lambda _: next(offered))
    assert choose_ports((7, 0, 0, 0), "127.0.0.1") == [7, 9, 11, 13]


def test_a_free_port_is_never_one_that_is_named_later(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = iter([8080, 9, 11, 13])
    monkeypatch.setattr(host, "free_port", lambda _: next(offered))
    assert choose_ports((0, 0, 0, 8080), "127.0.0.1") == [9, 11, 13, 8080]


@pytest.mark.parametrize("ports", [(7, 7, 8, 9), (7, 8, 9, 7), (0, 5, 6, 6)])
def test_a_port_that_is_named_twice(ports: tuple[int, ...]) -> None:
    with pytest.raises(SetupError, match=r"port \d+ is named twice"):
        choose_ports(ports, "127.0.0.1")
