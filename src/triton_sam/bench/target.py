"""The server to measure: one that is started for the benchmark, or one that runs already."""

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
from triton_sam.client import wire
from triton_sam.client.core import ClientCore
from triton_sam.client.link import ModelLink
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.client.transport import connect
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, chosen_spec
from triton_sam.models.specs import ModelSpec
from triton_sam.repository.model_folders import newest_version
from triton_sam.repository.segmenters import find_name, find_segmenters
from triton_sam.repository.setup import set_up_random
from triton_sam.server.selection import ModelSelection, prepare
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings, get_settings

_TIMEOUT_SECONDS = 300.0
#: On a CPU, until onnxruntime's threads stop spinning. On a GPU requests follow each other at once, as in the published
#: figures that they are compared with.
_CPU_REST_SECONDS, _GPU_REST_SECONDS = 0.1, 0.0


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """What to measure.

    Attributes:
        model: an id, or a family for its default model.
        urls: addresses of a running server; if empty, a server is started.
        repository: None for the one that ``setup`` writes.
        random_weights: use a temporary repository with random weights.
    """

    model: str = DEFAULT_MODEL
    image: Path | None = None
    side: int = SIDE
    urls: Sequence[str] = ()
    repository: Path | None = None
    random_weights: bool = False

    @property
    def spec(self) -> ModelSpec:
        return chosen_spec(self.model)


@dataclass(frozen=True, slots=True)
class Target:
    """A server with the model to measure.

    Attributes:
        urls: "HTTP" and "gRPC", or one of them -> address.
        name: of the segmenter on the server.
        folder: the segmenter's version folder, for :class:`LocalEngine`; None if it is not on this machine.
        running: the server that was started for the benchmark; None if it ran already.
        ready_seconds: from its start until it was ready.
    """

    urls: Mapping[str, str]
    name: str
    spec: ModelSpec
    pictures: Pictures
    settings: Settings
    folder: Path | None = None
    running: RunningServer | None = None
    random_weights: bool = False
    ready_seconds: float = 0.0

    def client(self, protocol: str) -> SAM2TritonClient:
        """A user's client, but without retries: refused requests must show up."""
        return SAM2TritonClient(self.urls[protocol], self.name, timeout=_TIMEOUT_SECONDS, retries=0)

    def link(self, protocol: str) -> ModelLink:
        """The part of a client that returns the server's raw outputs."""
        return _link(self.urls[protocol], self.name)

    @property
    def raw_folders(self) -> bool:
        """Whether the raw encoder and decoder models are in the repository too."""
        if self.folder is None:
            return False
        repository = self.folder.parent.parent
        return all((repository / f"{self.name}_{role}").is_dir() for role in ("encoder", "decoder"))

    def started_server(self, what: str) -> RunningServer:
        """The server that was started for the benchmark. Raises InvalidInput if it ran already."""
        if self.running is None:
            raise InvalidInput(f"{what} needs a server of its own: omit --url")
        return self.running

    def result(self, name: str) -> Result:
        """An empty result that describes this target."""
        weights = "random" if self.random_weights else "as set up"
        about = {"model": self.spec.id, "weights": weights, "image": self.pictures.about}
        if self.running is None:
            about["server"] = ", ".join(self.urls.values())
        version = _triton_version(self.urls)
        return Result(name, about=about | ({"tritonserver": version} if version else {}))

    @property
    def settle(self) -> float:
        """Seconds of rest before each measurement."""
        return _CPU_REST_SECONDS if gpu() is None else _GPU_REST_SECONDS


@contextlib.contextmanager
def open_target(
    options: TargetOptions, *, raw: bool = False, service: bool = False, environment: Mapping[str, str] | None = None
) -> Iterator[Target]:
    """The server to measure. One that is started here is stopped at the end.

    Args:
        raw: load the raw encoder and decoder models too, if they are in the repository.
        service: start the service too. It runs in this process and shares its interpreter.
        environment: settings of the server's processes, for example TRITON_SAM_CACHE_BYTES.
    """
    spec = options.spec  # first: an unknown model is reported before anything is set up
    pictures = Pictures(options.image, options.side)
    settings = get_settings()
    if options.urls:
        yield _connect(options, spec, pictures, settings)
        return
    with contextlib.ExitStack() as stack:
        served = _set_up(options, spec, settings, stack)
        name = next(iter(served.segmenters))
        folder = _version_folder(served.repository, name)
        started = time.perf_counter()
        has_raw_models = Target({}, name, spec, pictures, settings, folder).raw_folders
        running = stack.enter_context(
            serving(
                ServingOptions(
                    served.repository,
                    served.segmenters,
                    settings,
                    ports=Ports(0, 0, 0, 0),
                    raw=raw and has_raw_models,
                    with_service=service,
                    environment=environment or {},
                )
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
            options.random_weights,
            time.perf_counter() - started,
        )


def _connect(options: TargetOptions, spec: ModelSpec, pictures: Pictures, settings: Settings) -> Target:
    """A server that runs already."""
    urls = {("gRPC" if wire.Address.parse(url).grpc else "HTTP"): url for url in options.urls}
    link = _link(next(iter(urls.values())), spec.id)
    name = link.name()
    link.transport.close()
    repository = options.repository or settings.repository
    found = find_name(spec, repository)
    folder = None if found is None else _version_folder(repository, found)
    return Target(urls, name, spec, pictures, settings, folder, random_weights=options.random_weights)


def _set_up(options: TargetOptions, spec: ModelSpec, settings: Settings, stack: contextlib.ExitStack) -> ModelSelection:
    """The repository to serve; a temporary one is removed with ``stack``."""
    if not options.random_weights:
        return prepare([spec.id], settings, options.repository)
    repository = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton-sam-bench-")))
    set_up_random(spec, repository)
    found = {name: row for name, row in find_segmenters(repository).items() if row.id == spec.id}
    if not found:
        raise SetupError(f"{spec.id} cannot be set up with random weights: choose another model")
    return ModelSelection(repository, found)


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
        urllib.request.urlopen(f"{scheme}://{address.target}/v2", timeout=10) as response,
    ):
        about: dict[str, Any] = json.load(response)
        return str(about.get("version", "")) or None
    return None
