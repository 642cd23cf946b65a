"""What all tests share. Real Triton and real weights: where they cannot be had, those tests skip and say why."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from triton_sam import host, supervisor
from triton_sam.catalog import DEFAULT_MODEL, get_spec
from triton_sam.errors import SetupError, WeightsError
from triton_sam.repository import find_segmenters
from triton_sam.serving import Ports, Running, serving
from triton_sam.settings import Settings, get_settings
from triton_sam.setup_models import set_up
from triton_sam.specs import ModelSpec, Role
from triton_sam.supervisor import PingPolicy
from triton_sam.weights import WeightStore

ServerFactory = Callable[..., AbstractContextManager[Running]]
#: A repository with a model ``sam2`` in it that is served in place of one written here: another engine, a GPU.
_OTHER_REPOSITORY = os.environ.get("TRITON_SAM_TEST_REPOSITORY")


#: Name -> what it holds: the tests that only ``make test-all`` runs, each under ``@pytest.mark.part(name)``.
PARTS = {
    "exports": "every export against torch on every photograph, in fp32, fp16 and 8 bits, and foreign tools' profiles",
    "masks": "masks against the reference for every size, photograph and prompt, and the fast encoder's figures",
    "faults": "kills, damage, drains and hostile input in every combination, and in full length",
    "overload": "ten times capacity, crowds at HAProxy, two servers behind it",
    "soak": "hours of mixed load with kills, in twenty minutes",
    "mutations": "ten thousand mutated requests, and hypothesis with many examples",
    "deploy": "Helm, promtool, HAProxy, nginx, containers' files, the audit of what is installed",
    "clones": "a fresh clone and the light client on every Python and numpy",
    "vlm": "vision-language models: every family, shape and precision",
    "page": "the page's pictures, memory, devices and accessibility in full",
    "bench": "that every bench runs, and GPU kernels in an interpreter",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", action="append", default=[], choices=[*PARTS, "every"], help="run this part of `make test-all` instead"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without ``--part`` the tests for every commit; with it those of the named parts alone."""
    wanted: list[str] = config.getoption("--part")
    kept, left = [], []
    for item in items:
        names = {name for mark in item.iter_markers("part") for name in mark.args}
        unknown = names - set(PARTS)
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: there is no part {unknown.pop()!r}: known are {', '.join(PARTS)}")
        chosen = bool(names & set(wanted)) or ("every" in wanted and bool(names)) if wanted else not names
        (kept if chosen else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept
    _skip_what_needs_patience(items)


def _skip_what_needs_patience(items: list[pytest.Item]) -> None:
    """Two ARM cores take 4 to 6 s for an image, which two of x86 encode in 1.5 to 2.5; in halves they take minutes."""
    if platform.machine() == "x86_64" or os.environ.get("TRITON_SAM_PATIENT_TESTS"):
        return
    skip = pytest.mark.skip(reason="takes minutes on this machine: TRITON_SAM_PATIENT_TESTS=1 runs it")
    for item in items:
        if item.get_closest_marker("patient"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def spec() -> ModelSpec:
    return find_segmenters(Path(_OTHER_REPOSITORY))["sam2"] if _OTHER_REPOSITORY else get_spec(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def store(spec: ModelSpec) -> WeightStore:
    """The user's own cache of weights, with the default model in it."""
    store = WeightStore(get_settings().home)
    try:
        store.pull(spec)
    except WeightsError as error:
        pytest.skip(f"the weights of {spec.id} cannot be had here: {error}")
    return store


@pytest.fixture(scope="session")
def graphs(store: WeightStore, spec: ModelSpec) -> dict[Role, Path]:
    """The downloaded graph files, as they came."""
    return {file.role: store.path(file) for file in spec.files}


@pytest.fixture(scope="session")
def embedded_server() -> None:
    """For tests that serve: nothing where a server can be started."""
    try:
        host.find_triton(get_settings().tritonserver)
    except SetupError as error:
        pytest.skip(f"the embedded server cannot be had here: {error}")


@pytest.fixture(scope="session")
def repository(
    request: pytest.FixtureRequest,
    spec: ModelSpec,
    embedded_server: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A model repository written for this test run, with the plain graphs alone: masks are compared with theirs.

    What is made of them for CPUs is compared in ``test_cpu_encoder.py`` and ``test_cpu_decoder.py``.
    """
    return _written(request, spec, tmp_path_factory)


@pytest.fixture(scope="session")
def repository_for_cpus(
    request: pytest.FixtureRequest,
    spec: ModelSpec,
    embedded_server: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """As ``triton-sam setup`` writes it, with the quicker graphs: for tests that compare masks with each other."""
    return _written(request, spec, tmp_path_factory, fast_encoder=True, fast_decoder=True)


def _written(
    request: pytest.FixtureRequest, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory, **graphs: bool
) -> Path:
    if _OTHER_REPOSITORY:
        return Path(_OTHER_REPOSITORY)
    repository = tmp_path_factory.mktemp("models") / "model_repository"
    set_up(spec, request.getfixturevalue("store"), repository, **graphs)
    return repository


@pytest.fixture(scope="session")
def start_server(repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> ServerFactory:
    """Starts a server on free ports with settings of its own: ``with start_server(cache_bytes="1") as running``."""
    return server_factory(repository, spec, tmp_path_factory)


def server_factory(repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> ServerFactory:
    @contextlib.contextmanager
    def start(*, raw: bool = False, ping_policy: PingPolicy | None = None, **settings: str) -> Iterator[Running]:
        variables = {f"TRITON_SAM_{name.upper()}": value for name, value in settings.items()}
        with serving(
            repository,
            {"sam2": spec},
            Settings(home=tmp_path_factory.mktemp("home")),
            ports=Ports(0, 0, 0, 0),
            raw=raw,
            ping_policy=ping_policy,
            environment=variables,
        ) as running:
            yield running

    return start


@pytest.fixture
def patient_reaping(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that want a reload: on a busy machine Triton may let go of a dead process so late that a server of
    this very process is restarted instead, and rightly."""
    monkeypatch.setattr(supervisor, "_REAP_SECONDS", 20.0)


@pytest.fixture(scope="session")
def server(start_server: ServerFactory) -> Iterator[Running]:
    """One server for all tests that do not hurt it."""
    with start_server(raw=True) as running:
        yield running


@pytest.fixture(scope="session")
def photographs() -> Path:
    """The folder of public-domain pictures in scikit-image's wheel."""
    from triton_sam.demo import sample_photograph

    return sample_photograph().parent
