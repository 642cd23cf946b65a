"""The records by which other commands know our own servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.helpers import FileServer
from triton_sam.repository.availability import RunningModels
from triton_sam.server.running import ServerRecord, find_running, recorded, running_models

PORTS = (8000, 8001, 8002, 8080)


def record(**changes: object) -> ServerRecord:
    known: dict[str, object] = {
        "triton_url": "http://127.0.0.1:8000",
        "service_url": "http://127.0.0.1:8080",
        "ports": PORTS,
        "models": {"sam2": "sam2:tiny"},
    }
    return ServerRecord(**(known | changes))  # type: ignore[arg-type]


def test_a_record_is_there_while_its_server_is(tmp_path: Path) -> None:
    assert find_running(tmp_path) == []
    mine = record()
    with recorded(tmp_path, mine):
        assert find_running(tmp_path) == [mine]
        assert mine.pid == os.getpid()
    assert find_running(tmp_path) == []
    assert list((tmp_path / "run").iterdir()) == []


def test_two_servers_of_one_process(tmp_path: Path) -> None:
    first, second = record(), record(ports=(9000, 9001, 9002), service_url=None)
    with recorded(tmp_path, first), recorded(tmp_path, second):
        assert find_running(tmp_path) == [first, second]
        assert second.url == second.triton_url
    assert find_running(tmp_path) == []


@pytest.mark.parametrize("kind", ["ended", "number of another process", "damaged", "empty", "of another shape"])
def test_a_record_that_its_server_left_behind(kind: str, tmp_path: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    texts = {
        "ended": {"pid": done.pid, "started": "1"},
        "number of another process": {"pid": os.getpid(), "started": "1"},
        "damaged": "{",
        "empty": "",
        "of another shape": "[]",
    }
    left = texts[kind]
    base = {"triton_url": "http://x", "service_url": None, "ports": [1], "models": {}}
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "server-1-1.json"
    file.write_text(left if isinstance(left, str) else json.dumps(base | left))
    assert find_running(tmp_path) == []
    with recorded(tmp_path, record()):
        assert not file.exists()


def test_a_home_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    with recorded(tmp_path, record()):
        assert find_running(tmp_path) == []


def test_triton_is_asked_what_it_serves_now(server: FileServer) -> None:
    server.add("/v2/models/sam2/ready", b"")
    models = {"sam2": "sam2:tiny", "sam1": "sam1:mobile"}
    mine = record(triton_url=server.url, models=models)
    assert mine.served() == {"sam2:tiny": "http://127.0.0.1:8080"}
    assert running_models([mine]) == RunningModels(os.getpid(), {"sam2:tiny": "http://127.0.0.1:8080"})


DEVICE = {"device": "1", "state": "ready", "in_flight": 0, "engine": {"stage": "full speed", "seconds": 31.5}}


def ping_reply(answer: object) -> bytes:
    return json.dumps({"outputs": [{"name": "result_json", "data": [json.dumps(answer)]}]}).encode()


def test_segmenters_are_asked_for_their_devices(server: FileServer) -> None:
    """Those that respond; a vision-language model knows no ping."""
    for name in ("sam2", "sam1", "shapes_stream"):
        server.add(f"/v2/models/{name}/ready", b"")
    server.add("/v2/models/sam2/infer", ping_reply({"encode_seconds": 0, "devices": [DEVICE]}))
    server.add("/v2/models/sam1/infer", b"nonsense")
    models = {"sam2": "sam2:tiny", "sam1": "sam1:mobile", "gone": "sam3", "shapes_stream": "vlm:shapes"}
    assert record(triton_url=server.url, models=models).devices() == {"sam2": (DEVICE,)}
    assert [path for path, _ in server.posts] == ["/v2/models/sam2/infer", "/v2/models/sam1/infer"]
    assert json.loads(server.posts[0][1])["parameters"] == {"ping": True}


def test_nobody_answers(server: FileServer) -> None:
    url = server.url
    assert record(triton_url=url).devices() == {}
    assert record(triton_url=url).served() == {}
    assert running_models([]) == RunningModels()
