"""The load-generating processes against a fake server, the figures, and what the benchmark needs installed."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.bench.users.fake_server import fake_server_thread
from triton_sam.bench import results
from triton_sam.bench.pictures import Pictures
from triton_sam.bench.users import __main__ as standalone
from triton_sam.bench.users import outcome, running
from triton_sam.bench.users.generator import Generated, UsersLoad, let_work
from triton_sam.bench.users.schedule import Behaviour
from triton_sam.bench.users.tally import Actions, Tally, merged
from triton_sam.bench.users.worker import SERVICE, TRITON
from triton_sam.errors import InternalError, InvalidInput, NotFound, ServerUnreachable

BRISK = Behaviour(movement=(0.3, 0.4), pause=(0.05, 0.1), image_seconds=0.6)
#: Imports a module where some packages are missing.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
__import__(sys.argv[1])
"""


def tally() -> Tally:
    hovers = Actions(made=10, seconds=[0.010, 0.020, 0.030, 0.040], superseded=4, errors=Counter(queue_full=2))
    last = Actions(made=3, seconds=[0.030, 0.040], superseded=1)
    clicks = Actions(made=2, seconds=[0.5, 0.7])
    messages = {"queue_full": "the queue\nis full"}
    return Tally(hovers, last, clicks, Actions(), unsent=1, skipped=5, late=[0.001, 0.002], messages=messages)


def by_name(load: UsersLoad, generated: Generated) -> dict[str, float]:
    return {figure.name: figure.value for figure in outcome.figures(load, generated)}


@pytest.mark.part("bench")
@pytest.mark.parametrize("through", [TRITON, SERVICE])
def test_people_in_two_processes(through: str) -> None:
    load = UsersLoad(4, 1.2, through, processes=2, behaviour=BRISK, ramp=0.1)
    with fake_server_thread() as server:
        generated = let_work(load, ("127.0.0.1", server.port), "sam2", Pictures(side=64))
    found = generated.tally
    assert len(generated.cpu) == 2
    assert all(use > 0 for use in generated.cpu)
    assert found.hovers.made == found.hovers.answered + found.hovers.superseded > 0
    assert found.errors == {}
    if through == TRITON:
        sessions = {
            document["parameters"]["session_id"].split(" ", 1)[1]
            for kind, document, _ in server.requests
            if kind == "hover"
        }
        assert sessions == {f"{number} hover" for number in range(4)}
        images = [document["binary"] for kind, document, _ in server.requests if kind == "image"]
        assert len(set(images)) == len(images)


def test_a_failure_of_a_process_is_raised() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = free.getsockname()
        load = UsersLoad(2, 1.0, TRITON, processes=1)
        with pytest.raises(ServerUnreachable, match=f"no server responds at 127.0.0.1:{address[1]}"):
            let_work(load, address, "sam2", Pictures(side=64))


def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_sam.bench.users.generator._WORKER", "raise SystemExit(3)")
    with pytest.raises(InternalError, match="ended with code 3"):
        let_work(UsersLoad(1, 1.0, TRITON), ("127.0.0.1", 9), "sam2", Pictures(side=64))


def test_figures() -> None:
    load = UsersLoad(users=2, seconds=2.0, most_p95=35.0)
    generated = Generated(tally(), [0.2, 0.1])
    found = by_name(load, generated)
    assert found["newest hover, p50"] == pytest.approx(25.0)
    assert found["newest hover, p95"] == pytest.approx(38.5)
    assert found["last hover of a movement, p50"] == pytest.approx(35.0)
    assert found["click, p99"] == pytest.approx(698.0)
    assert found["new images answered"] == 0
    assert found["share of hovers computed"] == pytest.approx(0.4)
    assert found["errors"] == 2
    assert found["CPU of the load generator"] == 0.2
    assert found["delay of the load generator, p99"] == pytest.approx(1.99)
    details = {figure.name: figure for figure in outcome.figures(load, generated)}
    assert details["errors"].detail == "hovers: 2 x queue_full"
    assert "3 at the server, 1 before they were sent" in details["share of hovers computed"].detail
    assert [name for name, figure in details.items() if not figure.reached] == ["newest hover, p95"]
    assert [series.name for series in outcome.series(generated)] == [
        "newest hover",
        "last hover of a movement",
        "click",
    ]


def test_nothing_at_all_still_makes_a_table() -> None:
    found = by_name(UsersLoad(), Generated(Tally(), [0.0]))
    assert math.isnan(found["share of hovers computed"])
    assert found["newest hovers answered"] == 0


def test_a_busy_generator_and_errors_are_told() -> None:
    notes = outcome.notes(UsersLoad(), Generated(tally(), [0.2, 0.71]))
    assert notes[0].startswith(
        "WARNING: a load-generating process used 71% of a core, so the generator may be the limit"
    )
    assert notes[1] == "first queue_full: the queue is full"
    assert notes[2].startswith("5 steps were left out")
    assert outcome.notes(UsersLoad(), Generated(Tally(), [0.7])) == []


def test_a_generator_that_is_late_is_told() -> None:
    notes = outcome.notes(UsersLoad(), Generated(Tally(late=[0.03] * 10), [0.1]))
    assert len(notes) == 1
    assert notes[0].startswith("WARNING: 1 % of the steps came over 30 ms late")


def test_tallies_of_processes_are_added() -> None:
    whole = merged([tally(), Tally.from_json(json.loads(json.dumps(tally().as_json())))])
    assert (whole.hovers.made, whole.hovers.answered, whole.unsent, whole.skipped) == (20, 8, 2, 10)
    assert whole.hovers.errors == {"queue_full": 4}
    assert len(whole.late) == 4


@pytest.mark.parametrize(("users", "processes", "count"), [(1, None, 1), (1, 4, 1), (100, 3, 3)])
def test_there_are_not_more_processes_than_people(users: int, processes: int | None, count: int) -> None:
    assert UsersLoad(users, processes=processes).process_count == count
    assert 1 <= UsersLoad(100).process_count <= 4


@pytest.mark.parametrize(
    ("url", "through", "address"),
    [
        ("http://host:8000", TRITON, ("host", 8000)),
        ("host", TRITON, ("host", 8000)),
        ("http://host/", SERVICE, ("host", 8080)),
        ("http://[::1]:9", SERVICE, ("::1", 9)),
    ],
)
def test_addresses(url: str, through: str, address: tuple[str, int]) -> None:
    assert running.parse_url(url, through) == address


@pytest.mark.parametrize("url", ["https://host", "grpc://host:8001", "http://", "http://host/prefix", "http://host:x"])
def test_a_load_needs_plain_http(url: str) -> None:
    with pytest.raises(InvalidInput, match="plain HTTP"):
        running.parse_url(url, TRITON)


def test_a_model_is_found_by_its_id() -> None:
    config = json.dumps({"parameters": {"model_id": {"string_value": "sam2.1:base_plus"}}}).encode()
    with fake_server_thread() as server:
        address = ("127.0.0.1", server.port)
        server.answer = lambda kind, number: (200, config) if kind == "/v2/models/sam2/config" else (404, b"{}")
        assert running.find_model(address, TRITON, "sam2.1:base_plus") == "sam2"
        assert running.find_model(address, SERVICE, "sam2.1:base_plus") == "sam2.1:base_plus"
        for unknown in ("sam2:tiny", "sam2"):
            with pytest.raises(NotFound, match=f"does not serve {unknown}"):
                running.find_model(address, TRITON, unknown)
    with pytest.raises(ServerUnreachable, match="no server responds"):
        running.find_model(address, SERVICE, "sam2:tiny")


@pytest.mark.part("bench")
def test_alone_it_writes_a_result_that_the_other_commands_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server_thread() as server:
        words = ["--url", f"127.0.0.1:{server.port}", "--users", "2", "--seconds", "1", "--side", "64"]
        assert standalone.main([*words, "--output", str(tmp_path / "users.json")]) == 0
    result = results.read(tmp_path / "users.json")
    assert result.name == "users"
    assert {"newest hover, p95", "errors"} <= {figure.name for figure in result.figures}
    assert "newest hover, p95" in capsys.readouterr().out


def test_alone_it_says_in_one_sentence_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert standalone.main(["--url", "https://host"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("triton_sam.bench.users.measure", "fastapi,uvicorn,starlette,tritonclient,websockets,aiohttp"),
        ("triton_sam.cli.bench", "fastapi,uvicorn,starlette,tritonclient,websockets,aiohttp"),
        ("triton_sam.bench.users.__main__", "fastapi,tritonclient,websockets,aiohttp,pydantic,typer,rich,tifffile"),
        ("triton_sam.bench.users.worker", "fastapi,tritonclient,websockets,aiohttp,pydantic,typer,rich,numpy,PIL"),
    ],
)
def test_it_needs_little(module: str, missing: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, module, missing], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
