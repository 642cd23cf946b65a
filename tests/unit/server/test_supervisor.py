from __future__ import annotations

import contextlib
import queue
import threading
from types import SimpleNamespace

import pytest

from tests.unit.server.supervisor_helpers import MODEL_PID, NO_PINGS, WAIT, FakeProcess, FakeServers, status_of
from tests.waiting import eventually
from triton_sam.errors import CrashedAtStart, ServerError, SetupError
from triton_sam.server import supervisor
from triton_sam.server.command import ServerOptions
from triton_sam.server.supervisor import Supervisor

# start and stop


def test_start_and_stop(servers: FakeServers, options: ServerOptions) -> None:
    supervised = Supervisor(options, ("sam2",), NO_PINGS)
    assert supervised.status["state"] == "stopped"
    with pytest.raises(ServerError, match="not running"):
        _ = supervised.process
    assert supervised.start() is supervised
    assert supervised.status == status_of()
    assert supervised.process is servers.processes[0]
    assert not supervised.wait(0.001)
    supervised.stop()
    assert supervised.status["state"] == "stopped"
    assert supervised.wait(WAIT)
    assert servers.processes[0].steps == ["ready", "drain"]
    assert len(servers.processes) == 1
    supervised.stop()  # twice does no harm


def test_the_server_is_started_and_watched_by_one_thread_that_lives_as_long(
    servers: FakeServers, options: ServerOptions
) -> None:
    """The kernel ends the server with the thread that started it."""
    threads = []
    servers.on_start = lambda _: threads.append(threading.current_thread())
    with Supervisor(options, (), NO_PINGS):
        servers.processes[0].alive = False
        servers.recovered.get(timeout=WAIT)
        assert len(threads) == 2
        assert threads[0] is threads[1] is not threading.current_thread()
        assert threads[0].is_alive()
    assert not threads[0].is_alive()


@pytest.mark.parametrize("where", ["start", "ready"])
@pytest.mark.parametrize("error", [ServerError("the port is taken"), ValueError("odd")])
def test_a_first_start_that_fails(where: str, error: Exception, servers: FakeServers, options: ServerOptions) -> None:
    def on_start(started: FakeProcess) -> None:
        if where == "start":
            raise error
        started.not_ready = error

    servers.on_start = on_start
    supervised = Supervisor(options, ("sam2",), NO_PINGS)
    with pytest.raises(type(error)) as caught:
        supervised.start()
    assert caught.value is error
    assert supervised.status["state"] == "failed"
    assert supervised.status["reason"] == str(error)
    assert supervised.wait(WAIT)
    supervised.stop()
    assert len(servers.processes) == 1
    assert set(servers.processes[0].steps) == ({"kill"} if where == "ready" else set())


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_model_that_crashes_at_its_start_is_started_once_more(
    crashes: int, servers: FakeServers, options: ServerOptions
) -> None:
    def crash(started: FakeProcess) -> None:
        if started.number < crashes:
            started.not_ready = CrashedAtStart("the model sam2 does not load: its process is not healthy")

    servers.on_start = crash
    supervised = Supervisor(options, ("sam2",), NO_PINGS)
    with pytest.raises(CrashedAtStart) if crashes > 1 else contextlib.nullcontext():
        supervised.start()
    supervised.stop()
    assert [started.steps[0] for started in servers.processes] == ["kill", "ready" if crashes == 1 else "kill"]
    assert not any(started.alive for started in servers.processes)


# deaths


def test_a_dead_server_is_started_again(servers: FakeServers, running: Supervisor) -> None:
    servers.processes[0].alive = False
    status = servers.recovered.get(timeout=WAIT)
    assert status == status_of(restarts=1, reason="tritonserver ended with code -9")
    assert running.process is servers.processes[1]
    assert servers.processes[0].steps == ["ready", "kill"]
    assert servers.processes[1].steps == ["ready"]


def test_a_model_whose_process_died_idle_is_loaded_again(servers: FakeServers, running: Supervisor) -> None:
    servers.hold_requests("sam2", 0)
    servers.dead.add(MODEL_PID)
    status = servers.recovered.get(timeout=WAIT)
    assert status == status_of(reloads=1, reason="the process of sam2 died idle")
    assert servers.processes[0].steps == ["ready", "unload sam2", "load sam2"]
    assert running.process is servers.processes[0]


def test_two_processes_that_died_idle(servers: FakeServers, running: Supervisor) -> None:
    servers.hold_requests("sam2", 0)
    servers.hold_requests("other", 0)
    servers.dead = {MODEL_PID, 100_000}
    status = servers.recovered.get(timeout=WAIT)
    assert (status["reloads"], status["restarts"]) == (1, 0)
    assert status["reason"] == "the process of other, sam2 died idle"
    assert servers.processes[0].steps == ["ready", "unload other", "load other", "unload sam2", "load sam2"]


def test_a_process_that_died_with_requests_needs_a_restart(servers: FakeServers, running: Supervisor) -> None:
    servers.hold_requests("sam2", 2)
    servers.dead.add(MODEL_PID)
    status = servers.recovered.get(timeout=WAIT)
    assert (status["state"], status["restarts"], status["reloads"]) == ("ready", 1, 0)
    assert status["reason"] == "the process of sam2 died with requests in flight"
    assert servers.processes[0].steps == ["ready", "kill"]
    assert running.process is servers.processes[1]


def test_a_process_that_never_counted_is_not_trusted_to_be_idle(servers: FakeServers, running: Supervisor) -> None:
    servers.dead.add(MODEL_PID)
    assert servers.recovered.get(timeout=WAIT)["restarts"] == 1


def test_one_idle_and_one_busy_process_need_a_restart(servers: FakeServers, running: Supervisor) -> None:
    servers.hold_requests("sam2", 0)
    servers.hold_requests("other", 1)
    servers.dead = {MODEL_PID, 100_000}
    assert servers.recovered.get(timeout=WAIT)["restarts"] == 1
    assert servers.processes[0].steps == ["ready", "kill"]


def test_a_model_that_does_not_load_again_needs_a_restart(servers: FakeServers, running: Supervisor) -> None:
    servers.hold_requests("sam2", 0)
    servers.processes[0].load_error = ServerError("load failed")
    servers.dead.add(MODEL_PID)
    status = servers.recovered.get(timeout=WAIT)
    assert (status["state"], status["restarts"], status["reloads"]) == ("ready", 1, 0)
    assert servers.processes[0].steps == ["ready", "unload sam2", "kill"]


def test_a_dead_process_that_triton_does_not_let_go_needs_a_restart(servers: FakeServers, running: Supervisor) -> None:
    servers.hold_requests("sam2", 0)
    servers.zombies.add(MODEL_PID)
    servers.dead.add(MODEL_PID)
    status = servers.recovered.get(timeout=WAIT)
    assert (status["state"], status["restarts"], status["reloads"]) == ("ready", 1, 0)
    assert servers.processes[0].steps == ["ready", "unload sam2", "kill"]


def test_triton_may_end_the_processes_of_a_model_one_after_the_other(
    servers: FakeServers, running: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they take longer than the one that is waited for may take."""
    siblings = list(range(300_000, 300_010))
    servers.processes[0].model_pids |= dict.fromkeys(siblings, "sam2")
    polls = iter(range(1, 10_000))

    def known(pid: int) -> bool:
        """With each look at the dead process another one has ended; it is the last."""
        if pid == MODEL_PID and siblings and next(polls) % 2:
            siblings.pop()
        return pid in siblings or (pid == MODEL_PID and bool(siblings))

    monkeypatch.setattr(supervisor, "process_known", known)
    servers.hold_requests("sam2", 0)
    servers.dead.add(MODEL_PID)
    status = servers.recovered.get(timeout=WAIT)
    assert (status["state"], status["restarts"], status["reloads"]) == ("ready", 0, 1)
    assert servers.processes[0].steps == ["ready", "unload sam2", "load sam2"]


def test_a_process_that_a_newer_version_replaced_may_end(servers: FakeServers, running: Supervisor) -> None:
    started = servers.processes[0]
    servers.hold_requests("sam2", 0, 77)
    started.retiring = {77: "sam2", 78: "sam2"}  # the second one has ended in order and keeps no count any more
    servers.dead |= {77, 78}
    eventually(lambda: started.retiring == {}, "the end of its retirement")
    servers.hold_requests("sam2", 0)
    servers.dead.add(MODEL_PID)
    assert servers.recovered.get(timeout=WAIT)["reason"] == "the process of sam2 died idle"
    assert started.steps == ["ready", "unload sam2", "load sam2"]


def test_but_not_with_requests_that_it_held(servers: FakeServers, running: Supervisor) -> None:
    servers.hold_requests("sam2", 1, 77)
    servers.processes[0].retiring = {77: "sam2"}
    servers.dead.add(77)
    status = servers.recovered.get(timeout=WAIT)
    assert (status["restarts"], status["reloads"]) == (1, 0)
    assert status["reason"] == "the process of sam2 died with requests in flight"


def test_it_is_not_healthy_while_it_recovers(servers: FakeServers, running: Supervisor) -> None:
    seen: list[dict[str, object]] = []
    servers.on_start = lambda _: seen.append(running.status)
    servers.processes[0].alive = False
    servers.recovered.get(timeout=WAIT)
    assert [status["state"] for status in seen] == ["recovering"]
    assert seen[0]["lost"] == running.options.models


def test_a_loss_is_reported_at_once_and_a_callback_that_fails_does_not_matter(
    servers: FakeServers, running: Supervisor
) -> None:
    told: queue.Queue[tuple[object, ...]] = queue.Queue()

    def fails(reason: str, lost: tuple[str, ...]) -> None:
        raise RuntimeError("my own fault")

    running.on_loss(fails)
    unsubscribe = running.on_loss(lambda reason, lost: told.put((reason, lost, running.status["state"])))
    servers.hold_requests("sam2", 2)
    servers.dead.add(MODEL_PID)
    reason = "the process of sam2 died with requests in flight"
    assert told.get(timeout=WAIT) == (reason, ("sam2", "other"), "recovering")
    servers.recovered.get(timeout=WAIT)
    unsubscribe()
    servers.processes[1].alive = False
    servers.recovered.get(timeout=WAIT)
    assert told.empty()


def test_an_idle_death_is_a_loss_of_that_model_only(servers: FakeServers, running: Supervisor) -> None:
    told: list[tuple[str, ...]] = []
    running.on_loss(lambda _, lost: told.append(lost))
    servers.hold_requests("sam2", 0)
    servers.dead.add(MODEL_PID)
    assert servers.recovered.get(timeout=WAIT)["lost"] == ()
    assert told == [("sam2",)]


# giving up


def test_a_crash_loop_ends(servers: FakeServers, options: ServerOptions) -> None:
    with Supervisor(options, ("sam2",), NO_PINGS) as supervised:
        servers.on_start = lambda started: setattr(started, "alive", False)
        servers.processes[0].alive = False
        assert supervised.wait(WAIT)
        assert supervised.status["state"] == "failed"
        assert "5 times within 60 s" in str(supervised.status["reason"])
        assert str(servers.processes[0].log_path) in str(supervised.status["reason"])
        assert supervised.status["restarts"] == 5
    assert len(servers.processes) == 6
    assert all(each.steps[-1] == "kill" for each in servers.processes)


def test_restarts_of_long_ago_do_not_count(
    servers: FakeServers, running: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 100_000, 50))
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    for expected in range(1, 9):
        servers.processes[-1].alive = False
        assert servers.recovered.get(timeout=WAIT)["restarts"] == expected
    assert running.status["state"] == "ready"


def test_a_restart_that_fails_is_tried_again(servers: FakeServers, running: Supervisor) -> None:
    def on_start(started: FakeProcess) -> None:
        if started.number in (1, 3):
            started.not_ready = SetupError("the port is still taken")
        if started.number == 2:
            raise ServerError("the port is still taken")

    servers.on_start = on_start
    servers.processes[0].alive = False
    status = servers.recovered.get(timeout=WAIT)
    assert (status["state"], status["restarts"]) == ("ready", 1)
    assert running.process is servers.processes[4]
    assert servers.processes[1].steps == servers.processes[3].steps == ["kill"]
    assert servers.processes[4].steps == ["ready"]


def test_restarts_that_all_fail_end_it(servers: FakeServers, options: ServerOptions) -> None:
    with Supervisor(options, ("sam2",), NO_PINGS) as supervised:
        servers.on_start = lambda started: setattr(started, "not_ready", SetupError("the disk is full"))
        servers.processes[0].alive = False
        assert supervised.wait(WAIT)
        assert supervised.status["state"] == "failed"
        assert supervised.status["restarts"] == 0
        assert "5 times" in str(supervised.status["reason"])
    assert len(servers.processes) == 6
    assert all("kill" in each.steps for each in servers.processes)


def test_stop_ends_the_tries(servers: FakeServers, options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_RETRY_SECONDS", 1000.0)
    tried = threading.Event()
    with Supervisor(options, ("sam2",), NO_PINGS) as supervised:

        def on_start(started: FakeProcess) -> None:
            started.not_ready = SetupError("not yet")
            tried.set()

        servers.on_start = on_start
        servers.processes[0].alive = False
        assert tried.wait(WAIT)
    assert supervised.status["state"] == "stopped"
    assert len(servers.processes) == 2
    assert not any(each.alive for each in servers.processes)


def test_a_fault_of_our_own_ends_it_in_order_too(servers: FakeServers, options: ServerOptions) -> None:
    """Whatever is raised, the last process is stopped and the state is failed."""
    with Supervisor(options, ("sam2",), NO_PINGS) as supervised:
        servers.on_start = lambda started: setattr(started, "not_ready", ZeroDivisionError("a bug"))
        servers.processes[0].alive = False
        assert supervised.wait(WAIT)
        assert supervised.status["state"] == "failed"
        assert "a bug" in str(supervised.status["reason"])
    assert all(each.steps[-1] == "kill" for each in servers.processes)
