"""The server of ``triton-sam track``: the one that is named, one that runs and takes videos, or one for this run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triton_sam.cli.progress import download_progress
from triton_sam.client.endpoint import Endpoint
from triton_sam.console import err
from triton_sam.errors import SetupError, TritonSamError
from triton_sam.repository.configs import MEMORY, MODEL_ID
from triton_sam.repository.video_choice import first_choice, is_embedded, video_model
from triton_sam.server.running import find_running
from triton_sam.settings import Settings, get_settings

_ASK_SECONDS = 5.0
#: The name whose absence a server explains, with the names that it serves.
_USUAL = "sam2"


@dataclass(frozen=True, slots=True)
class TrackServer:
    """Addresses of Triton, none for the default, and the name of the model there."""

    urls: Sequence[str] | None
    model: str


@contextlib.contextmanager
def track_server(urls: Sequence[str] | None, model: str | None, token: str | None) -> Iterator[TrackServer]:
    """The server and the model for a video; one that is started for it ends with the block.

    Args:
        urls, model, token: as the user gave them; None if not.
    """
    settings = get_settings()
    if model is not None:
        yield TrackServer(urls, model)
        return
    if urls or "url" in settings.model_fields_set:
        named = list(urls or [settings.url])
        found = [name for url in named if (name := first_choice(_video_models(url, token))) is not None]
        yield TrackServer(urls, found[0] if found else _USUAL)
        return
    running = _running(settings, token)
    if running is not None:
        yield running
        return
    with _own_server(settings) as own:
        yield own


def _running(settings: Settings, token: str | None) -> TrackServer | None:
    """The best choice on the servers of this machine."""
    urls = dict.fromkeys([*(record.triton_url for record in find_running(settings.home)), settings.url])
    choices = [(url, name, model_id) for url in urls for name, model_id in _video_models(url, token)]
    best = min(choices, key=lambda choice: is_embedded(choice[2]), default=None)
    return None if best is None else TrackServer([best[0]], best[1])


def _video_models(url: str, token: str | None) -> list[tuple[str, str]]:
    """(Triton name, id) of the models of a server that take videos; none if it does not answer, or is no Triton."""
    transport = Endpoint(url, _ASK_SECONDS, token=token).transport()
    try:
        known = [(name, transport.parameters(name)) for name in transport.served()]
    except TritonSamError:
        return []
    finally:
        transport.close()
    return [(name, parameters.get(MODEL_ID, "")) for name, parameters in known if MEMORY in parameters]


@contextlib.contextmanager
def _own_server(settings: Settings) -> Iterator[TrackServer]:
    from triton_sam.server import host
    from triton_sam.server.selection import prepare
    from triton_sam.serving import Ports, ServingOptions, serving

    model_id = video_model(settings.repository)
    try:
        host.check_platform()
        err.print(f"no server here takes videos: one with {model_id} is started for this run")
        with download_progress() as progress:
            chosen = prepare([model_id], settings, None, progress)
    except SetupError as error:
        raise SetupError(f"no server with a model for videos answers, and none can be started: {error}") from None
    options = ServingOptions(
        chosen.repository, chosen.segmenters, settings, ports=Ports(0, 0, 0, 0), with_service=False
    )
    with serving(options) as running:
        yield TrackServer([running.urls["HTTP"]], next(iter(chosen.segmenters)))
