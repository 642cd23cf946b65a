"""A server that runs already: whether it responds, and under which name it serves a model. Standard library only."""

from __future__ import annotations

import http.client
import json
from http import HTTPStatus
from urllib.parse import quote, urlsplit

from triton_sam.bench.users.worker import SERVICE
from triton_sam.errors import InvalidInput, NotFound, ServerUnreachable

_PORTS = {SERVICE: 8080}
_TRITON_PORT = 8000
_TIMEOUT_SECONDS = 10.0


def parse_url(url: str, through: str) -> tuple[str, int]:
    """(host, port) of ``http://host:port``; InvalidInput for anything but plain HTTP."""
    scheme, separator, rest = url.strip().partition("://")
    parts = urlsplit(f"//{rest if separator else url.strip()}".rstrip("/"))
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or (separator and scheme.lower() != "http") or parts.path or parts.username:
        raise InvalidInput(
            f"a load is sent over plain HTTP, and {url!r} is not an address for it: use http://host:port"
        )
    return host, port or _PORTS.get(through, _TRITON_PORT)


def find_model(address: tuple[str, int], through: str, model: str) -> str:
    """The name by which requests ask for a model. The service knows ids; for Triton an id is looked up.

    Raises ServerUnreachable, or NotFound if Triton does not serve the model.
    """
    if through == SERVICE:
        _get(address, "health")
        return model
    if ":" not in model:
        if _get(address, f"v2/models/{quote(model, safe='')}/ready")[0] == HTTPStatus.OK:
            return model
        raise NotFound(f"the server at {_shown(address)} does not serve {model}: give --model as it names it")
    # As the clients look it up: the model's own name, then its family's.
    for name in (model.replace(":", "_"), model.partition(":")[0].partition(".")[0]):
        status, body = _get(address, f"v2/models/{quote(name, safe='')}/config")
        if status == HTTPStatus.OK and _model_id(body) == model:
            return name
    raise NotFound(f"the server at {_shown(address)} does not serve {model}: give another --model")


def triton_version(address: tuple[str, int]) -> str | None:
    """The version of the Triton that responds; None if it does not say."""
    try:
        return str(json.loads(_get(address, "v2")[1])["version"])
    except (ValueError, LookupError, TypeError):
        return None


def _model_id(config: bytes) -> str | None:
    try:
        return str(json.loads(config)["parameters"]["model_id"]["string_value"])
    except (ValueError, LookupError, TypeError):
        return None


def _get(address: tuple[str, int], path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"/{path}")
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnreachable(
            f"no server responds at {_shown(address)} ({error}): start one with `triton-sam serve`, or omit --url"
        ) from None
    finally:
        connection.close()


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
