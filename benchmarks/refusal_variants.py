"""``triton-sam serve`` with one of the places switched off that can refuse a request: for benchmarks/refusals.py.

usage: REFUSALS_CORES=0,1 python -m benchmarks.refusal_variants VARIANT OPTIONS_OF_SERVE ...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.instant_model import serve_instant

#: Instead of a model repository.
INSTANT = "instant"


def _replace(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


def _no_door() -> None:
    from triton_sam.service.admission.load_shedding import LoadShedder

    _replace(LoadShedder, "refuses", lambda *_: False)


def _door_as_middleware() -> None:
    """The same refusals by ASGI middleware before all others, without uvicorn's protocol."""
    from starlette.middleware import Middleware

    from triton_sam.service import app
    from triton_sam.service.admission.load_shedding import LoadShedder

    looks, plain = LoadShedder.refuses, app._middleware

    class Door:
        def __init__(self, inner: Any, shedder: LoadShedder) -> None:
            self._inner, self._shedder = inner, shedder

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or not looks(
                self._shedder, scope["method"].encode(), scope["raw_path"], scope["headers"]
            ):
                await self._inner(scope, receive, send)
                return
            head, _, body = self._shedder.response(scope["headers"], ()).partition(b"\r\n\r\n")
            headers = [tuple(line.split(b": ", 1)) for line in head.split(b"\r\n")[1:]]
            await send({"type": "http.response.start", "status": 429, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def layers(settings: Any, metrics: Any, access: Any, capacity: Any, *more: Any) -> list[Middleware]:
        door = Middleware(Door, shedder=LoadShedder(capacity, metrics))
        return [door, *plain(settings, metrics, access, capacity, *more)]

    _no_door()
    _replace(app, "_middleware", layers)


def _uvicorns_limit() -> None:
    """uvicorn's ``limit_concurrency`` instead of the door and the places."""
    import uvicorn

    from triton_sam.settings import Settings

    plain = uvicorn.Config

    def limited(*arguments: Any, **options: Any) -> uvicorn.Config:
        return plain(*arguments, **options | {"limit_concurrency": Settings().service_requests})

    _replace(uvicorn, "Config", limited)
    _no_door()
    _no_places()


def _no_places() -> None:
    """Requests are counted, and the door looks at the count, but the middleware refuses none."""
    from triton_sam.service.admission.capacity import ServiceCapacity

    plain = ServiceCapacity._fits

    def fits(self: ServiceCapacity, name: str, number: int, limit: int) -> bool:
        return plain(self, name, number, 10**12)

    _replace(ServiceCapacity, "_fits", fits)
    _replace(ServiceCapacity, "check", lambda *_: None)


def _no_fullness() -> None:
    from triton_sam.service.admission.backpressure import Backpressure

    _replace(Backpressure, "check", lambda *_: None)


def _no_window() -> None:
    from triton_sam.service import gateway

    _replace(gateway, "_MAX_IN_FLIGHT", 10**9)


@dataclass(frozen=True)
class Variant:
    """One arrangement: functions that change the service's process, and settings."""

    patches: tuple[Callable[[], None], ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    haproxy: bool = False


_NO_QUEUES = {"TRITON_SAM_CLICK_QUEUE": "1000000", "TRITON_SAM_ENCODE_QUEUE": "1000000"}
VARIANTS = {
    "all": Variant(),
    "no-door": Variant((_no_door,)),
    "door-as-middleware": Variant((_door_as_middleware,)),
    "uvicorns-limit": Variant((_uvicorns_limit,)),
    "no-places": Variant((_no_places,)),
    "no-door-no-places": Variant((_no_door, _no_places)),
    "no-fullness": Variant((_no_fullness,)),
    "no-window": Variant((_no_window,)),
    "no-scheduler": Variant(settings=_NO_QUEUES),
    "nothing": Variant((_no_door, _no_places, _no_fullness, _no_window), _NO_QUEUES),
    "haproxy": Variant(haproxy=True),
}


def serve(variant: str, arguments: list[str]) -> None:
    """``triton-sam serve`` with a variant's changes, in all processes of the service."""
    from triton_sam.cli.app import app
    from triton_sam.service import process_pool

    os.sched_setaffinity(0, [int(core) for core in os.environ["REFUSALS_CORES"].split(",")])
    change(variant)
    if INSTANT in arguments:
        serve_instant(int(arguments[arguments.index("--service-port") + 1]))
        return
    line = f"from benchmarks.refusal_variants import change; change({variant!r})\n"
    process_pool._CODE = process_pool._CODE.replace("main()\n", f"{line}main()\n")
    app(["serve", *arguments])


def change(variant: str) -> None:
    """Applies a variant's changes to this process."""
    for patch in VARIANTS[variant].patches:
        patch()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
