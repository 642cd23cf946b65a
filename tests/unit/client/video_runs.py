"""A small video and what a client finds in it at servers that act out the protocol."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.unit.client.video_server import FakeVideoServer, reached
from triton_sam import SAM2VideoClient

LENGTH, HEIGHT, WIDTH = 24, 6, 9
VIDEO = np.random.default_rng(7).integers(0, 255, (LENGTH, HEIGHT, WIDTH, 3), np.uint8)


def client_of(*servers: FakeVideoServer, **options: Any) -> SAM2VideoClient:
    return SAM2VideoClient(servers=reached(*servers), **{"state_every": 5, "in_flight": 3, **options})


def tracked(server: FakeVideoServer, length: int = LENGTH, **options: Any) -> list[tuple[int, list[int], Any]]:
    with client_of(server, **options) as client:
        state = client.init_state(VIDEO[:length])
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        return list(client.propagate_in_video(state))


def same(found: list[Any], expected: list[Any]) -> None:
    assert [(frame, ids) for frame, ids, _ in found] == [(frame, ids) for frame, ids, _ in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one[2], other[2])
