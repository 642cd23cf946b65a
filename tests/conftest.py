"""Fixtures of all tests. Servers are real Tritons, with the analytic model or, where it matters, published weights."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests import hypothesis_profiles
from tests.analytic import analytic_spec, write_analytic
from tests.parts import PARTS, SHAPES
from tests.video_serving import video_repository  # noqa: F401
from triton_sam.errors import SetupError, WeightsError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import ModelSpec, Role
from triton_sam.models.weights import WeightStore
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.repository.setup import SetupRequest, set_up
from triton_sam.server import host, supervisor
from triton_sam.server.pings import PingPolicy
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings, get_settings

#: On a machine with many cores too: most tests read the service's log and metrics in their own process.
os.environ.setdefault("TRITON_SAM_SERVICE_PROCESSES", "1")
hypothesis_profiles.load()  # before the test modules are imported, which read it
ServerFactory = Callable[..., AbstractContextManager[RunningServer]]
#: A repository with a model ``sam2`` that is served instead of one written here: another engine, a GPU.
_OTHER_REPOSITORY = os.environ.get("TRITON_SAM_TEST_REPOSITORY")

#: A module with this mark imports torch when it is collected.
_NEEDS_TORCH = re.compile(r"^pytestmark = .*\bpytest\.mark\.torch\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m 'not torch'``, modules that need torch are not even imported: torch may not be installed."""
    if collection_path.suffix != ".py" or "not torch" not in config.option.markexpr:
        return None
    return True if _NEEDS_TORCH.search(collection_path.read_text()) else None


def pytest_configure(config: pytest.Config) -> None:
    """Sets the variables of a part that runs tests of others with another shape of the server."""
    wanted: list[str] = config.getoption("--part")
    shaped = [part for part in wanted if part in SHAPES]
    if shaped and len(wanted) > 1:
        raise pytest.UsageError(f"the part {shaped[0]} has settings of its own: run it alone")
    for part in shaped:
        os.environ.update(SHAPES[part])
        get_settings.cache_clear()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        action="append",
        default=[],
        choices=[*PARTS, "every"],
        help="run this part of `make test-all` instead",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selects the tests for every commit or, with ``--part``, only those of the named parts."""
    wanted: list[str] = config.getoption("--part")
    kept, left = [], []
    for item in items:
        names = {name for mark in item.iter_markers("part") for name in mark.args}
        also = {name for mark in item.iter_markers("also_part") for name in mark.args}
        unknown = (names | also) - set(PARTS)
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: there is no part {unknown.pop()!r}: known are {', '.join(PARTS)}")
        chosen = bool((names | also) & set(wanted)) or ("every" in wanted and bool(names)) if wanted else not names
        (kept if chosen else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(scope="session")
def spec() -> ModelSpec:
    """Spec of the analytic model, which most tests use because its masks can be computed by hand."""
    return analytic_spec()


@pytest.fixture(scope="session")
def real_spec() -> ModelSpec:
    return find_segmenters(Path(_OTHER_REPOSITORY))["sam2"] if _OTHER_REPOSITORY else get_spec(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def store(real_spec: ModelSpec) -> WeightStore:
    """The user's own cache of weights, with the default model in it."""
    store = WeightStore(get_settings().home)
    try:
        store.pull(real_spec)
    except WeightsError as error:
        pytest.skip(f"the weights of {real_spec.id} are not available here: {error}")
    return store


@pytest.fixture(scope="session")
def graphs(store: WeightStore, real_spec: ModelSpec) -> dict[Role, Path]:
    """The published graph files, unchanged."""
    return {file.role: store.path(file) for file in real_spec.files}


@pytest.fixture(scope="session")
def embedded_server() -> None:
    """For tests that serve: skips them if no server can be started."""
    try:
        host.find_triton(get_settings().tritonserver)
    except SetupError as error:
        pytest.skip(f"the embedded server is not available here: {error}")


@pytest.fixture(scope="session")
def repository(embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with the analytic model under the name ``sam2``."""
    return write_analytic(tmp_path_factory.mktemp("models") / "model_repository", tmp_path_factory.mktemp("graphs"))


@pytest.fixture(scope="session")
def real_repository(
    request: pytest.FixtureRequest,
    real_spec: ModelSpec,
    embedded_server: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The published model as ``triton-sam setup`` writes it."""
    if _OTHER_REPOSITORY:
        return Path(_OTHER_REPOSITORY)
    repository = tmp_path_factory.mktemp("real") / "model_repository"
    set_up(SetupRequest(real_spec, request.getfixturevalue("store"), repository, cpu_encoder=True, fast_decoder=True))
    return repository


@pytest.fixture(scope="session")
def start_server(repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> ServerFactory:
    """Starts a server on free ports with its own settings: ``with start_server(cache_bytes="1") as running``."""
    return server_factory(repository, spec, tmp_path_factory)


def server_factory(repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> ServerFactory:
    @contextlib.contextmanager
    def start(*, raw: bool = False, ping_policy: PingPolicy | None = None, **settings: str) -> Iterator[RunningServer]:
        variables = {f"TRITON_SAM_{name.upper()}": value for name, value in settings.items()}
        with serving(
            ServingOptions(
                repository,
                {"sam2": spec},
                Settings(home=tmp_path_factory.mktemp("home")),
                ports=Ports(0, 0, 0, 0),
                raw=raw,
                ping_policy=ping_policy,
                environment=variables,
            )
        ) as running:
            yield running

    return start


@pytest.fixture
def patient_reaping(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that expect a reload: on a busy machine Triton may reap a dead process so late that the supervisor
    correctly restarts the whole server instead."""
    monkeypatch.setattr(supervisor, "_REAP_SECONDS", 20.0)


@pytest.fixture(scope="session")
def server(start_server: ServerFactory) -> Iterator[RunningServer]:
    """One server with the analytic model, for all tests that leave it intact."""
    with start_server() as running:
        yield running


@pytest.fixture(scope="session")
def real_server(
    real_repository: Path, real_spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """One server with the published weights, which also serves their plain graphs."""
    with server_factory(real_repository, real_spec, tmp_path_factory)(raw=True) as running:
        yield running


@pytest.fixture(scope="session")
def photographs() -> Path:
    """The folder of public-domain images in scikit-image's wheel."""
    from triton_sam.core.samples import sample_photograph

    return sample_photograph().parent
