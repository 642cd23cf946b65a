from __future__ import annotations

import io
import json
import queue
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import eventually
from triton_sam.errors import ServerError, SetupError
from triton_sam.repository.model_folders import ModelState
from triton_sam.server import process, supervisor
from triton_sam.server.command import ServerOptions
from triton_sam.server.in_flight import flight_file
from triton_sam.server.supervisor import PingPolicy, Supervisor

WAIT = 20.0
STUB = 4711
#: No ping in the time that a test takes.
NO_PINGS = PingPolicy(every=1000.0)


class FakeProcess:
    """One life of a server that exists only here."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.alive = True
        self.process = SimpleNamespace(returncode=-9)
        self.stubs = {STUB + number: "sam2", 100_000 + number: "other"}
        self.retiring: dict[int, str] = {}
        self.flight_folder = folder
        self.log_path = folder / "triton.log"
        self.steps: list[str] = []
        self.not_ready: BaseException | None = None
        self.load_error: BaseException | None = None
        self.pins: dict[str, ModelState] = {}
        self.failed: dict[str, str] = {}

    def versions(self) -> dict[str, str]:
        return {"sam2": "1", "other": "1", "not served": "1"}

    def forget_retired(self, pids: Iterable[int]) -> None:
        self.retiring = {pid: name for pid, name in self.retiring.items() if pid not in set(pids)}

    def wait_ready(self, shall_stop: Callable[[], bool]) -> None:
        assert not shall_stop()
        if self.not_ready is not None:
            raise self.not_ready
        self.steps.append("ready")

    def unload(self, model: str) -> None:
        self.steps.append(f"unload {model}")
        self.stubs = {pid: name for pid, name in self.stubs.items() if name != model}

    def load(self, model: str, pinned: ModelState | None = None) -> None:
        if self.load_error is not None:
            raise self.load_error
        self.steps.append(f"load {model}" + (f" version {pinned.version}" if pinned else ""))
        self.stubs[200_000 + len(self.steps)] = model

    def stop(self, *, drain: bool = True) -> None:
        self.alive = False
        self.steps.append("drain" if drain else "kill")


class World:
    """All lives of a server; ``born`` may change a life before it begins."""

    def __init__(self, folder: Path) -> None:
        self.lives: list[FakeProcess] = []
        self.dead: set[int] = set()
        self.zombies: set[int] = set()
        self.born: Callable[[FakeProcess], None] = lambda _: None
        self.recovered: queue.Queue[dict[str, object]] = queue.Queue()
        self._folder = folder

    def start(self, _options: ServerOptions, pins: dict[str, ModelState]) -> FakeProcess:
        life = FakeProcess(len(self.lives), self._folder)
        life.pins = pins
        self.lives.append(life)
        self.born(life)
        return life

    def hold_requests(self, model: str, count: int, pid: int | None = None) -> None:
        """Lets the model's process of the first life hold requests, or another one."""
        pid = pid or {"sam2": STUB, "other": 100_000}[model]
        flight_file(self._folder, model, pid).write_bytes(struct.pack("<q", count))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    original = Supervisor._recover

    def recover(self: Supervisor, *arguments: Any) -> None:
        original(self, *arguments)
        made.recovered.put(self.status)

    monkeypatch.setattr(Supervisor, "_recover", recover)
    monkeypatch.setattr(supervisor, "_WATCH_SECONDS", 0.002)
    monkeypatch.setattr(supervisor, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(process, "start", made.start)
    monkeypatch.setattr(supervisor, "_REAP_SECONDS", 0.02)
    monkeypatch.setattr(supervisor, "process_alive", lambda pid: pid not in made.dead)
    monkeypatch.setattr(supervisor, "process_known", lambda pid: pid not in made.dead or pid in made.zombies)
    return made


@pytest.fixture
def options(tmp_path: Path) -> ServerOptions:
    return ServerOptions(tmp_path / "repository", ("sam2", "other"), tmp_path)


@pytest.fixture
def running(world: World, options: ServerOptions) -> Iterator[Supervisor]:
    with Supervisor(options, ("sam2",), NO_PINGS) as started:
        yield started


def status_of(**changes: object) -> dict[str, object]:
    """The status of a server that serves."""
    quiet = {"state": "ready", "restarts": 0, "reloads": 0, "reason": "", "lost": ()}
    return {**quiet, "versions": {"sam2": "1", "other": "1"}, "problems": {}, "missing": (), **changes}


# a quiet life


def test_what_does_not_load_is_told_and_not_pinged(
    world: World, options: ServerOptions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or the missing answers would restart the server that serves all the others."""
    pinged: queue.Queue[str] = queue.Queue()

    def ping(_: Supervisor, model: str) -> bool:
        pinged.put(model)
        return True

    monkeypatch.setattr(Supervisor, "_ping", ping)
    world.born = lambda life: life.failed.update({"other": "decoder.onnx is damaged"})
    with Supervisor(options, ("sam2", "other"), PingPolicy(every=0.001)) as supervised:
        assert {pinged.get(timeout=10) for _ in range(5)} == {"sam2"}
        status = supervised.status
        assert (status["state"], status["missing"]) == ("ready", ("other",))
        assert status["problems"] == {"other": "does not load, the other models serve: decoder.onnx is damaged"}
    assert caplog.text.count("decoder.onnx is damaged") == 1


def test_the_dead_are_not_pinged_before_their_death_is_noticed(
    world: World, options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton never answers what comes to a dead process, and keeps it as a zombie."""
    pinged: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(Supervisor, "_ping", lambda _, model: not pinged.put(model))
    monkeypatch.setattr(supervisor, "_WATCH_SECONDS", 10 * WAIT)
    with Supervisor(options, ("sam2", "other"), PingPolicy(every=0.001)):
        assert {pinged.get(timeout=WAIT) for _ in range(4)} == {"sam2", "other"}
        world.dead.add(STUB)
        while not pinged.empty():
            pinged.get()
        others = 0
        while others < 2:  # the first of them ends the round that was under way
            others += pinged.get(timeout=WAIT) == "other"
        assert {pinged.get(timeout=WAIT) for _ in range(5)} == {"other"}


def test_start_and_stop(world: World, options: ServerOptions) -> None:
    supervised = Supervisor(options, ("sam2",), NO_PINGS)
    assert supervised.status["state"] == "stopped"
    with pytest.raises(ServerError, match="not running"):
        _ = supervised.process
    assert supervised.start() is supervised
    assert supervised.status == status_of()
    assert supervised.process is world.lives[0]
    assert not supervised.wait(0.001)
    supervised.stop()
    assert supervised.status["state"] == "stopped"
    assert supervised.wait(WAIT)
    assert world.lives[0].steps == ["ready", "drain"]
    assert len(world.lives) == 1
    supervised.stop()  # twice does no harm


def test_the_server_is_started_and_watched_by_one_thread_that_lives_as_long(
    world: World, options: ServerOptions
) -> None:
    """The kernel ends the server with the thread that started it."""
    threads = []
    world.born = lambda _: threads.append(threading.current_thread())
    with Supervisor(options, (), NO_PINGS):
        world.lives[0].alive = False
        world.recovered.get(timeout=WAIT)
        assert len(threads) == 2
        assert threads[0] is threads[1] is not threading.current_thread()
        assert threads[0].is_alive()
    assert not threads[0].is_alive()


@pytest.mark.parametrize("where", ["start", "ready"])
@pytest.mark.parametrize("error", [ServerError("the port is taken"), ValueError("odd")])
def test_a_first_start_that_fails(where: str, error: Exception, world: World, options: ServerOptions) -> None:
    def born(life: FakeProcess) -> None:
        if where == "start":
            raise error
        life.not_ready = error

    world.born = born
    supervised = Supervisor(options, ("sam2",), NO_PINGS)
    with pytest.raises(type(error)) as caught:
        supervised.start()
    assert caught.value is error
    assert supervised.status["state"] == "failed"
    assert supervised.status["reason"] == str(error)
    assert supervised.wait(WAIT)
    supervised.stop()
    assert len(world.lives) == 1
    assert set(world.lives[0].steps) == ({"kill"} if where == "ready" else set())


# deaths


def test_a_dead_server_is_started_again(world: World, running: Supervisor) -> None:
    world.lives[0].alive = False
    status = world.recovered.get(timeout=WAIT)
    assert status == status_of(restarts=1, reason="tritonserver ended with code -9")
    assert running.process is world.lives[1]
    assert world.lives[0].steps == ["ready", "kill"]
    assert world.lives[1].steps == ["ready"]


def test_a_stub_that_died_idle_is_loaded_again(world: World, running: Supervisor) -> None:
    world.hold_requests("sam2", 0)
    world.dead.add(STUB)
    status = world.recovered.get(timeout=WAIT)
    assert status == status_of(reloads=1, reason="the process of sam2 died idle")
    assert world.lives[0].steps == ["ready", "unload sam2", "load sam2"]
    assert running.process is world.lives[0]


def test_two_stubs_that_died_idle(world: World, running: Supervisor) -> None:
    world.hold_requests("sam2", 0)
    world.hold_requests("other", 0)
    world.dead = {STUB, 100_000}
    status = world.recovered.get(timeout=WAIT)
    assert (status["reloads"], status["restarts"]) == (1, 0)
    assert status["reason"] == "the process of other, sam2 died idle"
    assert world.lives[0].steps == ["ready", "unload other", "load other", "unload sam2", "load sam2"]


def test_a_stub_that_died_with_requests_takes_the_server_with_it(world: World, running: Supervisor) -> None:
    world.hold_requests("sam2", 2)
    world.dead.add(STUB)
    status = world.recovered.get(timeout=WAIT)
    assert (status["state"], status["restarts"], status["reloads"]) == ("ready", 1, 0)
    assert status["reason"] == "the process of sam2 died with requests in flight"
    assert world.lives[0].steps == ["ready", "kill"]
    assert running.process is world.lives[1]


def test_a_stub_that_never_counted_is_not_trusted_to_be_idle(world: World, running: Supervisor) -> None:
    world.dead.add(STUB)
    assert world.recovered.get(timeout=WAIT)["restarts"] == 1


def test_one_idle_and_one_busy_stub_need_a_restart(world: World, running: Supervisor) -> None:
    world.hold_requests("sam2", 0)
    world.hold_requests("other", 1)
    world.dead = {STUB, 100_000}
    assert world.recovered.get(timeout=WAIT)["restarts"] == 1
    assert world.lives[0].steps == ["ready", "kill"]


def test_a_model_that_does_not_load_again_needs_a_restart(world: World, running: Supervisor) -> None:
    world.hold_requests("sam2", 0)
    world.lives[0].load_error = ServerError("load failed")
    world.dead.add(STUB)
    status = world.recovered.get(timeout=WAIT)
    assert (status["state"], status["restarts"], status["reloads"]) == ("ready", 1, 0)
    assert world.lives[0].steps == ["ready", "unload sam2", "kill"]


def test_a_dead_process_that_triton_does_not_let_go_needs_a_restart(world: World, running: Supervisor) -> None:
    world.hold_requests("sam2", 0)
    world.zombies.add(STUB)
    world.dead.add(STUB)
    status = world.recovered.get(timeout=WAIT)
    assert (status["state"], status["restarts"], status["reloads"]) == ("ready", 1, 0)
    assert world.lives[0].steps == ["ready", "unload sam2", "kill"]


def test_a_process_that_a_newer_version_replaced_may_end(world: World, running: Supervisor) -> None:
    life = world.lives[0]
    world.hold_requests("sam2", 0, 77)
    life.retiring = {77: "sam2", 78: "sam2"}  # the second one has ended in order and keeps no count any more
    world.dead |= {77, 78}
    eventually(lambda: life.retiring == {}, "the end of its retirement")
    world.hold_requests("sam2", 0)
    world.dead.add(STUB)
    assert world.recovered.get(timeout=WAIT)["reason"] == "the process of sam2 died idle"
    assert life.steps == ["ready", "unload sam2", "load sam2"]


def test_but_not_with_requests_that_it_held(world: World, running: Supervisor) -> None:
    world.hold_requests("sam2", 1, 77)
    world.lives[0].retiring = {77: "sam2"}
    world.dead.add(77)
    status = world.recovered.get(timeout=WAIT)
    assert (status["restarts"], status["reloads"]) == (1, 0)
    assert status["reason"] == "the process of sam2 died with requests in flight"


def test_it_is_not_healthy_while_it_recovers(world: World, running: Supervisor) -> None:
    seen: list[dict[str, object]] = []
    world.born = lambda _: seen.append(running.status)
    world.lives[0].alive = False
    world.recovered.get(timeout=WAIT)
    assert [status["state"] for status in seen] == ["recovering"]
    assert seen[0]["lost"] == running.options.models


def test_a_lost_server_is_told_of_at_once_and_a_fault_of_who_is_told_does_not_matter(
    world: World, running: Supervisor
) -> None:
    told: queue.Queue[tuple[object, ...]] = queue.Queue()

    def fails(reason: str, lost: tuple[str, ...]) -> None:
        raise RuntimeError("my own fault")

    running.on_loss(fails)
    unsubscribe = running.on_loss(lambda reason, lost: told.put((reason, lost, running.status["state"])))
    world.hold_requests("sam2", 2)
    world.dead.add(STUB)
    reason = "the process of sam2 died with requests in flight"
    assert told.get(timeout=WAIT) == (reason, ("sam2", "other"), "recovering")
    world.recovered.get(timeout=WAIT)
    unsubscribe()
    world.lives[1].alive = False
    world.recovered.get(timeout=WAIT)
    assert told.empty()


def test_an_idle_death_is_a_loss_of_that_model_only(world: World, running: Supervisor) -> None:
    told: list[tuple[str, ...]] = []
    running.on_loss(lambda _, lost: told.append(lost))
    world.hold_requests("sam2", 0)
    world.dead.add(STUB)
    assert world.recovered.get(timeout=WAIT)["lost"] == ()
    assert told == [("sam2",)]


# giving up


def test_a_crash_loop_ends(world: World, options: ServerOptions) -> None:
    with Supervisor(options, ("sam2",), NO_PINGS) as supervised:
        world.born = lambda life: setattr(life, "alive", False)
        world.lives[0].alive = False
        assert supervised.wait(WAIT)
        assert supervised.status["state"] == "failed"
        assert "5 times within 60 s" in str(supervised.status["reason"])
        assert str(world.lives[0].log_path) in str(supervised.status["reason"])
        assert supervised.status["restarts"] == 5
    assert len(world.lives) == 6
    assert all(life.steps[-1] == "kill" for life in world.lives)


def test_restarts_of_long_ago_do_not_count(world: World, running: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100_000, 50))
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    for expected in range(1, 9):
        world.lives[-1].alive = False
        assert world.recovered.get(timeout=WAIT)["restarts"] == expected
    assert running.status["state"] == "ready"


def test_a_restart_that_fails_is_tried_again(world: World, running: Supervisor) -> None:
    def born(life: FakeProcess) -> None:
        if life.number in (1, 3):
            life.not_ready = SetupError("the port is still taken")
        if life.number == 2:
            raise ServerError("the port is still taken")

    world.born = born
    world.lives[0].alive = False
    status = world.recovered.get(timeout=WAIT)
    assert (status["state"], status["restarts"]) == ("ready", 1)
    assert running.process is world.lives[4]
    assert world.lives[1].steps == world.lives[3].steps == ["kill"]
    assert world.lives[4].steps == ["ready"]


def test_restarts_that_all_fail_end_it(world: World, options: ServerOptions) -> None:
    with Supervisor(options, ("sam2",), NO_PINGS) as supervised:
        world.born = lambda life: setattr(life, "not_ready", SetupError("the disk is full"))
        world.lives[0].alive = False
        assert supervised.wait(WAIT)
        assert supervised.status["state"] == "failed"
        assert supervised.status["restarts"] == 0
        assert "5 times" in str(supervised.status["reason"])
    assert len(world.lives) == 6
    assert all("kill" in life.steps for life in world.lives)


def test_stop_ends_the_tries(world: World, options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_RETRY_SECONDS", 1000.0)
    tried = threading.Event()
    with Supervisor(options, ("sam2",), NO_PINGS) as supervised:

        def born(life: FakeProcess) -> None:
            life.not_ready = SetupError("not yet")
            tried.set()

        world.born = born
        world.lives[0].alive = False
        assert tried.wait(WAIT)
    assert supervised.status["state"] == "stopped"
    assert len(world.lives) == 2
    assert not any(life.alive for life in world.lives)


def test_a_fault_of_our_own_ends_it_in_order_too(world: World, options: ServerOptions) -> None:
    """Whatever is raised, the last life is stopped and the state says that it is over."""
    with Supervisor(options, ("sam2",), NO_PINGS) as supervised:
        world.born = lambda life: setattr(life, "not_ready", ZeroDivisionError("a bug"))
        world.lives[0].alive = False
        assert supervised.wait(WAIT)
        assert supervised.status["state"] == "failed"
        assert "a bug" in str(supervised.status["reason"])
    assert all(life.steps[-1] == "kill" for life in world.lives)


# pings


def test_missed_pings_restart_the_server(world: World, options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []

    def ping(_self: Supervisor, model: str) -> bool:
        asked.append((len(world.lives), model))
        return len(world.lives) > 1

    monkeypatch.setattr(Supervisor, "_ping", ping)
    with Supervisor(options, ("sam2",), PingPolicy(every=0.002, missed=3)) as supervised:
        status = world.recovered.get(timeout=WAIT)
        assert (status["state"], status["restarts"]) == ("ready", 1)
        assert "pings" in str(status["reason"])
        assert supervised.process is world.lives[1]
    assert asked.count((1, "sam2")) >= 3
    assert world.lives[0].steps == ["ready", "kill"]
    assert len(world.lives) == 2


def test_a_ping_that_is_answered_forgives_those_before(
    world: World, options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()
    answers = iter([False, False, True] * 10)

    def ping(_self: Supervisor, _model: str) -> bool:
        answer = next(answers, None)
        if answer is None:
            done.set()
        return answer is not False

    monkeypatch.setattr(Supervisor, "_ping", ping)
    with Supervisor(options, ("sam2",), PingPolicy(every=0.002, missed=3)) as supervised:
        assert done.wait(WAIT)
        assert supervised.status == status_of()
    assert len(world.lives) == 1


@pytest.mark.parametrize("state", ["starting", "recovering", "stopping", "failed"])
def test_only_a_server_that_serves_is_pinged(
    state: str, options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_ping", lambda *_: pytest.fail("pinged"))
    supervised = Supervisor(options, ("sam2",))
    supervised._status.state = state
    waits = iter([False, False, False, True])
    monkeypatch.setattr(supervised, "_stopping", SimpleNamespace(wait=lambda _: next(waits)))
    supervised._ping_loop()
    assert list(waits) == []
    assert supervised._missed_pings == 0


def test_a_ping_into_a_recovery_does_not_count(options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def ping(self: Supervisor, _model: str) -> bool:
        self._status.state = "recovering"
        return False

    monkeypatch.setattr(Supervisor, "_ping", ping)
    supervised = Supervisor(options, ("sam2",))
    monkeypatch.setattr(supervised, "_process", SimpleNamespace(stubs={}))
    supervised._status.state = "ready"
    waits = iter([False, True])
    monkeypatch.setattr(supervised, "_stopping", SimpleNamespace(wait=lambda _: next(waits)))
    supervised._ping_loop()
    assert supervised._missed_pings == 0


def pinging(options: ServerOptions, monkeypatch: pytest.MonkeyPatch, urlopen: Callable[..., Any]) -> Supervisor:
    """A supervisor over a real TritonProcess whose HTTP calls go to ``urlopen``."""
    monkeypatch.setattr(process._without_proxy, "open", urlopen)
    supervised = Supervisor(options, ("sam2",))
    nowhere = options.state / "nowhere"
    no_process: Any = None
    supervised._process = process.TritonProcess(options, no_process, nowhere, nowhere, "prefix", "key")
    return supervised


def answer_of(document: object) -> Callable[..., Any]:
    body = json.dumps({"outputs": [{"name": "result_json", "data": [json.dumps(document)]}]})

    def urlopen(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        assert request.full_url == "http://127.0.0.1:8000/v2/models/sam2/infer"
        assert timeout == 15.0
        asked = json.loads(request.data)  # type: ignore[arg-type]
        assert asked["parameters"] == {"ping": True}
        return io.BytesIO(body.encode())

    return urlopen


@pytest.mark.parametrize(
    ("document", "healthy"),
    [({"encode_seconds": 0}, True), ({"encode_seconds": 599.9}, True), ({"encode_seconds": 600.0}, False), ({}, False)],
)
def test_a_ping(
    document: dict[str, float], healthy: bool, options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pinging(options, monkeypatch, answer_of(document))._ping("sam2") is healthy


@pytest.mark.parametrize(
    "error", [TimeoutError("slow"), ConnectionResetError("gone"), urllib.error.URLError("refused"), OSError("odd")]
)
def test_a_ping_that_is_not_answered(error: Exception, options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def urlopen(*_: object, **__: object) -> None:
        raise error

    assert pinging(options, monkeypatch, urlopen)._ping("sam2") is False


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[]", b'{"outputs": []}', b'{"outputs": [{"data": [7]}]}'])
def test_a_ping_whose_answer_is_nonsense(body: bytes, options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never an exception: it would end the pinging thread, and nobody would notice a hung model again."""
    assert pinging(options, monkeypatch, lambda *_, **__: io.BytesIO(body))._ping("sam2") is False


def test_a_ping_that_is_cut_off(options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    import http.client

    def urlopen(*_: object, **__: object) -> None:
        raise http.client.BadStatusLine("half a line")

    assert pinging(options, monkeypatch, urlopen)._ping("sam2") is False
