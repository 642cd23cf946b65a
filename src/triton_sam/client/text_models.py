"""The model of a server that takes words and examples, for callers that name none."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from triton_sam.client.endpoint import Endpoint
from triton_sam.client.transport import Transport
from triton_sam.errors import NotFound
from triton_sam.models.catalog import find_spec

#: The parameter in Triton's config of a model that takes text, as the repository writes it.
TAKES_TEXT = "concepts"
_MODEL_ID = "model_id"
_ASK_SECONDS = 30.0


def model_for_text(url: str | None = None, token: str | None = None, transport: Transport | None = None) -> str:
    """Triton name of the served model that takes text; asks the server.

    A model with published weights comes before one whose weights are all in this package, which is a toy.

    Args:
        url, token: as for the clients.
        transport: replaces the network, for tests.

    Raises:
        NotFound: no model of this server takes text.
    """
    endpoint = Endpoint(url, _ASK_SECONDS, token=token)
    asked = transport or endpoint.transport()
    try:
        known = {name: asked.parameters(name) for name in asked.served()}
        if not known:
            with contextlib.suppress(NotFound):  # where no server answers, it raises that
                asked.parameters("sam3")
    finally:
        asked.close()
    names = [name for name, parameters in known.items() if TAKES_TEXT in parameters]
    if not names:
        raise NotFound(no_model_takes_text(list(known), endpoint.address.target))
    return min(names, key=lambda name: _is_toy(known[name].get(_MODEL_ID, "")))


def no_model_takes_text(served: Sequence[str], address: str) -> str:
    """The message for a server without such a model."""
    found = f"it serves {', '.join(served)}, and " if served else ""
    return (
        f"{found}no model at {address} takes text: set one up there with `triton-sam setup sam3` "
        "(sam3:shapes is a toy for drawn shapes, and needs no download)"
    )


def _is_toy(model_id: str) -> bool:
    spec = find_spec(model_id)
    return spec is not None and spec.embedded
