"""Who sends a request about videos: videos belong to their callers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.websockets import WebSocket

from triton_sam.service.admission.authentication import client_address
from triton_sam.service.api_tokens import ANONYMOUS
from triton_sam.service.rate_limits import address_name
from triton_sam.service.telemetry import request_context

_TOKEN, _ADDRESS = "token ", "address "


def caller_of(request: Request | WebSocket) -> str:
    """The owner of a token; without tokens the address, of IPv6 the network."""
    context = request_context.current()
    name = ANONYMOUS if context is None else context.caller
    return f"{_ADDRESS}{address_name(client_address(request.scope))}" if name == ANONYMOUS else f"{_TOKEN}{name}"


def is_known(request: Request) -> bool:
    """Whether the caller has a token."""
    return caller_of(request).startswith(_TOKEN)


def is_owner(caller: str, owner: str) -> bool:
    """Whether a caller may use the video of an owner. Who has no token is known by the video's id alone.

    Addresses change, behind a proxy or on the way home.
    """
    return caller == owner or (caller.startswith(_ADDRESS) and owner.startswith(_ADDRESS))
