"""What is measured: a server of our own, or one that runs already."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam.bench.machine import gpu
from triton_sam.bench.pictures import SIDE, Pictures
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Plan
from triton_sam.client import wire
from triton_sam.client.core import ClientCore
from triton_sam.client.link import ModelLink
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.client.transport import connect
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, FAMILY_DEFAULTS, get_spec
from triton_sam.models.specs import ModelSpec
from triton_sam.repository.model_folders import newest_version
from triton_sam.repository.segmenters import find_name, find_segmenters
from triton_sam.repository.setup import set_up_random
from triton_sam.serving import Ports, Running, Served, prepare, serving
from triton_sam.settings import Settings, get_settings

_TIMEOUT_SECONDS = 300.0
#: For threads that spin after a run. On a GPU one request follows the other, as in the figures it is compared with.
_CPU_REST_SECONDS, _GPU_REST_SECONDS = 0.1, 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What a user asks to be measured.

    Attributes:
        model: an id, or a family for its default model.
        urls: of a server that runs already; none starts one.
        repository: the user's own; None for the one that ``setup`` writes.
        random_weights: a repository of its own with random weights, which is gone afterwards.
    """

    model: str = DEFAULT_MODEL
    image: Path | None = None
    side: int = SIDE
    urls: Sequence[str] = ()
    repository: Path | None = None
    random_weights: bool = False

    @property
    def spec(self) -> ModelSpec:
        return get_spec(FAMILY_DEFAULTS.get(self.model, self.model))


@dataclass(frozen=True, slots=True)
class Target:
    """A server with the model that is measured.

    Attributes:
        urls: "HTTP" and "gRPC", or one of them -> address.
        name: of the segmenter on the server.
        folder: the segmenter's version folder, for the bare engine; None where it is not on this machine.
        running: None where the server is not ours.
        ready_seconds: from the start to ready, of a server of ours.
    """

    urls: Mapping[str, str]
    name: str
    spec: ModelSpec
    pictures: Pictures
    settings: Settings
    folder: Path | None = None
    running: Running | None = None
    random_weights: bool = False
    ready_seconds: float = 0.0

    def client(self, protocol: str) -> SAM2TritonClient:
        """As users have it, but without patience: what is refused shall be seen."""
        return SAM2TritonClient(self.urls[protocol], self.name, timeout=_TIMEOUT_SECONDS, retries=0)

    def link(self, protocol: str) -> ModelLink:
        """The part of a client that gives the server's own words."""
        return _link(self.urls[protocol], self.name)

    @property
    def raw_folders(self) -> bool:
        """Whether the plain encoder and decoder are in the repository too."""
        if self.folder is None:
            return False
        repository = self.folder.parent.parent
        return all((repository / f"{self.name}_{role}").is_dir() for role in ("encoder", "decoder"))

    def own(self, what: str) -> Running:
        """Our server; InvalidInput where it is somebody else's."""
        if self.running is None:
            raise InvalidInput(f"{what} needs a server of its own: leave --url away")
        return self.running

    def result(self, name: str) -> Result:
        """An empty one that says what is measured."""
        weights = "random" if self.random_weights else "as set up"
        about = {"model": self.spec.id, "weights": weights, "image": self.pictures.about}
        if self.running is None:
            about["server"] = ", ".join(self.urls.values())
        version = _triton_version(self.urls)
        return Result(name, about=about | ({"tritonserver": version} if version else {}))

    @property
    def settle(self) -> float:
        """Rest before each measurement, seconds."""
        return _CPU_REST_SECONDS if gpu() is None else _GPU_REST_SECONDS


def planned(target: Target, rounds: int, samples: int, warm_up: int, rest: float | None = None) -> Plan:
    """A plan with the rest that is asked for, or that this machine needs."""
    return Plan(rounds, samples, warm_up, target.settle if rest is None else rest)


@contextlib.contextmanager
def opened(
    choice: Choice, *, raw: bool = False, service: bool = False, environment: Mapping[str, str] | None = None
) -> Iterator[Target]:
    """The server to measure; one of our own is stopped at the end.

    Args:
        raw: load the plain encoder and decoder too, where they are.
        service: start the service too, in this process; who does not ask it shall not share an interpreter with it.
        environment: settings of the server's processes, for example TRITON_SAM_CACHE_BYTES.
    """
    spec = choice.spec  # first of all: an unknown model is told before anything is made
    pictures = Pictures(choice.image, choice.side)
    settings = get_settings()
    if choice.urls:
        urls = {("gRPC" if wire.Address.parse(url).grpc else "HTTP"): url for url in choice.urls}
        first = next(iter(urls.values()))
        link = _link(first, spec.id)
        name = link.name()
        link.transport.close()
        repository = choice.repository or settings.repository
        there = find_name(spec, repository)
        folder = None if there is None else _version_folder(repository, there)
        yield Target(urls, name, spec, pictures, settings, folder, random_weights=choice.random_weights)
        return
    with contextlib.ExitStack() as stack:
        served = _served(choice, spec, settings, stack)
        name = next(iter(served.segmenters))
        folder = _version_folder(served.repository, name)
        started = time.perf_counter()
        plain = Target({}, name, spec, pictures, settings, folder).raw_folders
        running = stack.enter_context(
            serving(
                served.repository,
                served.segmenters,
                settings,
                ports=Ports(0, 0, 0, 0),
                raw=raw and plain,
                with_service=service,
                environment=environment,
            )
        )
        urls = {protocol: running.urls[protocol] for protocol in ("HTTP", "gRPC")}
        yield Target(
            urls,
            name,
            served.segmenters[name],
            pictures,
            settings,
            folder,
            running,
            choice.random_weights,
            time.perf_counter() - started,
        )


def _served(choice: Choice, spec: ModelSpec, settings: Settings, stack: contextlib.ExitStack) -> Served:
    if not choice.random_weights:
        return prepare([spec.id], settings, choice.repository)
    repository = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton-sam-bench-")))
    set_up_random(spec, repository)
    found = {name: row for name, row in find_segmenters(repository).items() if row.id == spec.id}
    if not found:
        raise SetupError(f"no model with random weights could be made of {spec.id}")
    return Served(repository, found)


def _version_folder(repository: Path, name: str) -> Path:
    return repository / name / str(newest_version(repository / name))


def _link(url: str, name: str) -> ModelLink:
    return ModelLink(connect(wire.Address.parse(url), _TIMEOUT_SECONDS, {}), ClientCore(name, retries=0))


def _triton_version(urls: Mapping[str, str]) -> str | None:
    address = wire.Address.parse(urls["HTTP"]) if "HTTP" in urls else None
    if address is None:
        return None
    scheme = "https" if address.tls else "http"
    with (
        contextlib.suppress(OSError, ValueError),
        urllib.request.urlopen(f"{scheme}://{address.target}/v2", timeout=10) as answer,
    ):
        about: dict[str, Any] = json.load(answer)
        return str(about.get("version", "")) or None
    return None
