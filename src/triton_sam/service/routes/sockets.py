"""What all WebSockets have in common: who may open one, and how many messages it may send."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import WebSocket

from triton_sam.errors import Forbidden, TritonSamError
from triton_sam.service.admission import authentication
from triton_sam.service.admission.access_control import HOVER, AccessControl
from triton_sam.service.api_tokens import Caller
from triton_sam.service.error_responses import error_response
from triton_sam.service.telemetry import request_context
from triton_sam.settings import Settings

POLICY_VIOLATION, TRY_AGAIN_LATER = 1008, 1013


def authenticated(socket: WebSocket, settings: Settings, access: AccessControl) -> Caller | None:
    """The caller of a WebSocket; raises if it must not be opened."""
    if not authentication.is_allowed_origin(socket.headers, settings.cors_origins):
        raise Forbidden("the origin of this web page is not allowed: add it to TRITON_SAM_CORS_ORIGINS")
    offered = authentication.websocket_token(socket.headers, socket.scope["subprotocols"])
    caller = access.authenticate(offered, authentication.client_address(socket.scope))
    if caller is not None:
        request_context.set_caller(caller.name)
    return caller


@dataclass(slots=True)
class RateLimit:
    """The rate limit of one WebSocket's messages."""

    access: AccessControl
    caller: Caller | None
    address: str

    def check(self) -> None:
        """Counts one message; RateLimited if the rate is used up, NotAuthorised if the token is no longer valid."""
        self.caller = self.access.revalidate(self.caller)
        self.access.check_rate(self.caller, self.address, HOVER)


async def deny(socket: WebSocket, refusal: TritonSamError) -> None:
    """Refuses the handshake, with an error document if the server supports it."""
    if "websocket.http.response" in socket.scope.get("extensions", {}):
        await socket.send_denial_response(error_response(refusal))
    else:
        await socket.close(POLICY_VIOLATION)
