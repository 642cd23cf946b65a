"""The server of ``triton-sam track``: the one that is named, one that runs and takes videos, or one for this run.

For words it also has a model that takes text, which may be another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triton_sam.cli.progress import download_progress
from triton_sam.client.endpoint import Endpoint
from triton_sam.console import err
from triton_sam.errors import NotFound, SetupError, TritonSamError
from triton_sam.repository.configs import CONCEPTS, MEMORY, MODEL_ID
from triton_sam.repository.text_choice import text_model
from triton_sam.repository.video_choice import first_choice, is_embedded, video_model
from triton_sam.server.running import find_running
from triton_sam.settings import Settings, get_settings

_ASK_SECONDS = 5.0
#: The name whose absence a server explains, with the names that it serves.
_USUAL = "sam2"


@dataclass(frozen=True, slots=True)
class TrackServer:
    """Addresses of Triton, none for the default, and names of models there.

    Attributes:
        model: what tracks.
        text_model: what finds words; empty if there are none to find.
    """

    urls: Sequence[str] | None
    model: str
    text_model: str = ""


@dataclass(frozen=True, slots=True)
class TrackModels:
    """Names of models that a user gives; None for one that is chosen.

    Attributes:
        finds: whether there are words to find.
    """

    model: str | None = None
    text_model: str | None = None
    finds: bool = False


@dataclass(frozen=True, slots=True)
class _Served:
    """(Triton name, id) of the models of a server that track, and of those that take text."""

    tracking: list[tuple[str, str]]
    finding: list[tuple[str, str]]


@contextlib.contextmanager
def track_server(urls: Sequence[str] | None, given: TrackModels, token: str | None) -> Iterator[TrackServer]:
    """The server and the models for a video; one that is started for it ends with the block.

    Args:
        urls, token: as the user gave them; None if not.
    """
    settings = get_settings()
    named = list(urls or [settings.url]) if urls or "url" in settings.model_fields_set else None
    if given.model is not None and (given.text_model is not None or not given.finds):
        yield TrackServer(urls, given.model, given.text_model or "")
    elif named is not None or given.model is not None:
        yield _named(urls, named or [settings.url], given, token)
    elif (running := _running(settings, given, token)) is not None:
        yield running
    else:
        with _own_server(settings, given) as own:
            yield own


def _named(urls: Sequence[str] | None, named: Sequence[str], given: TrackModels, token: str | None) -> TrackServer:
    """Models on servers that the user named."""
    served = [_served(url, token) for url in named]
    tracks = given.model or next((name for one in served if (name := first_choice(one.tracking))), _USUAL)
    finds = given.text_model or next((name for one in served if (name := first_choice(one.finding))), None)
    if given.finds and finds is None:
        _check_answers(named[0], token)
        raise NotFound(
            f"no model on {' or '.join(named)} takes text: set one up there with `triton-sam setup sam3`, "
            "or name it with --text-model"
        )
    return TrackServer(urls, tracks, finds or "")


def _check_answers(url: str, token: str | None) -> None:
    """Raises ServerUnreachable if no server answers there."""
    transport = Endpoint(url, _ASK_SECONDS, token=token).transport()
    try:
        with contextlib.suppress(NotFound):
            transport.parameters(_USUAL)
    finally:
        transport.close()


def _running(settings: Settings, given: TrackModels, token: str | None) -> TrackServer | None:
    """The best choice on the servers of this machine."""
    urls = dict.fromkeys([*(record.triton_url for record in find_running(settings.home)), settings.url])
    choices = []
    for url in urls:
        served = _served(url, token)
        finds = given.text_model or first_choice(served.finding)
        if served.tracking and (finds or not given.finds):
            choices += [(url, name, model_id, finds or "") for name, model_id in served.tracking]
    best = min(choices, key=lambda choice: is_embedded(choice[2]), default=None)
    return None if best is None else TrackServer([best[0]], best[1], best[3] if given.finds else "")


def _served(url: str, token: str | None) -> _Served:
    """The models of a server; none if it does not answer, or is no Triton."""
    transport = Endpoint(url, _ASK_SECONDS, token=token).transport()
    try:
        known = [(name, transport.parameters(name)) for name in transport.served()]
    except TritonSamError:
        return _Served([], [])
    finally:
        transport.close()
    tracking, finding = (
        [(name, parameters.get(MODEL_ID, "")) for name, parameters in known if kind in parameters]
        for kind in (MEMORY, CONCEPTS)
    )
    return _Served(tracking, finding)


@contextlib.contextmanager
def _own_server(settings: Settings, given: TrackModels) -> Iterator[TrackServer]:
    from triton_sam.server import host
    from triton_sam.server.selection import prepare
    from triton_sam.serving import Ports, ServingOptions, serving

    ids = [video_model(settings.repository)]
    if given.finds:
        ids = list(dict.fromkeys([*ids, text_model(settings.repository)]))
    try:
        host.check_platform()
        err.print(
            f"no server here takes {'words' if given.finds else 'videos'}: one with {' and '.join(ids)} is started"
        )
        with download_progress() as progress:
            chosen = prepare(ids, settings, None, progress)
    except SetupError as error:
        raise SetupError(f"no server with a model for videos answers, and none can be started: {error}") from None
    options = ServingOptions(
        chosen.repository, chosen.segmenters, settings, ports=Ports(0, 0, 0, 0), with_service=False
    )
    names = {spec.id: name for name, spec in chosen.segmenters.items()}
    with serving(options) as running:
        yield TrackServer([running.urls["HTTP"]], names[ids[0]], names[ids[-1]] if given.finds else "")
