"""The servers of a video client: addresses, transports, and the look-up of the model's name on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triton_sam.client.async_transport import AsyncTransport
from triton_sam.client.core import ClientCore
from triton_sam.client.endpoint import Endpoint
from triton_sam.client.transport import Transport
from triton_sam.errors import InvalidInput, Unsupported


class VideoServer:
    """One server, by its address; nothing is sent before it is used."""

    def __init__(
        self,
        endpoint: Endpoint,
        core: ClientCore,
        transport: Transport | None = None,
        async_transport: AsyncTransport | None = None,
    ) -> None:
        self.core = core
        self.transport = transport or endpoint.transport()
        self.async_transport = async_transport or endpoint.async_transport()
        self._endpoint = endpoint if async_transport is None else None

    def check(self) -> None:
        """Unsupported if the address is that of the triton-sam service; asks once. Blocks."""
        if self._endpoint is not None and self._endpoint.is_service():
            raise Unsupported(
                f"{self._endpoint.address.target} is the triton-sam service, and videos need Triton itself: give "
                "Triton's address, for example localhost:8000"
            )


def video_servers(
    url: str | Sequence[str] | None,
    model_type: str,
    *,
    timeout: float,
    headers: Mapping[str, str] | None,
    token: str | None,
) -> list[VideoServer]:
    """The servers at one address or several; InvalidInput for a malformed one."""
    urls: Sequence[str | None] = [url] if url is None or isinstance(url, str) else list(url)
    if not urls:
        raise InvalidInput("the list of addresses is empty: give at least one")
    if timeout <= 0:
        raise InvalidInput("timeout must be above 0")
    return [
        VideoServer(Endpoint(one, timeout, headers, token), ClientCore(model_type, retries=0, headers=headers))
        for one in urls
    ]
