"""Several models of one family, names and ids, and folders for foreign tools, on one server."""

from __future__ import annotations

import dataclasses
import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

from tests.integration.serve_folder import health, serve_folder
from tests.unit.export.small import Small, SmallFactory
from tests.waiting import eventually
from triton_sam import SAM2TritonClient
from triton_sam.errors import NotFound
from triton_sam.models.catalog import get_spec
from triton_sam.repository.segmenters import choose_name, write_models, write_plain_model
from triton_sam.server.in_flight import requests_in_flight
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
POINT = [365, 290]
FIRST, SECOND = "sam2:tiny", "sam2.1:small"


@pytest.fixture(scope="module")
def small(small_exports: SmallFactory) -> Small:
    return small_exports("sam2.1:tiny")


@pytest.fixture(scope="module")
def folder(small: Small, embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One export as the default model's and as another's, and the decoder for a tool."""
    made = tmp_path_factory.mktemp("variants") / "model_repository"
    graphs = small.encoder_file, small.decoder_file
    for model_id in (FIRST, SECOND):
        spec = dataclasses.replace(get_spec(model_id), graphs=small.spec.graphs)
        write_models(spec, *graphs, made, name=choose_name(spec, made))
    side = small.spec.decoder.mask_side
    inputs = [(name, "TYPE_FP32", shape) for name, shape in small.spec.encoder.outputs]
    inputs += [
        ("point_coords", "TYPE_FP32", (-1, -1, 2)),
        ("point_labels", "TYPE_FP32", (-1, -1)),
        ("mask_input", "TYPE_FP32", (-1, 1, side, side)),
        ("has_mask_input", "TYPE_FP32", (1,)),
    ]
    write_plain_model(
        "tool_decoder",
        graphs[1],
        made,
        inputs=inputs,
        outputs=[("iou_predictions", "TYPE_FP32", (-1, -1))],
        profile="tool",
    )
    return made


@pytest.fixture(scope="module")
def running(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serve_folder(folder, tmp_path_factory.mktemp("home")) as started:
        yield started


@pytest.fixture(scope="module")
def coffee(photographs: Path) -> bytes:
    return (photographs / "coffee.png").read_bytes()


def test_what_is_served(running: RunningServer) -> None:
    assert sorted(running.segmenters) == ["sam2", "sam2.1_small"]
    assert health(running)["versions"] == {"sam2": "1", "sam2.1_small": "1", "tool_decoder": "1"}


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_ids_and_names(running: RunningServer, coffee: bytes, protocol: str) -> None:
    url = running.urls[protocol]
    masks = {}
    for asked, answers in (("sam2:tiny", "sam2:tiny"), (SECOND, SECOND), ("sam2.1_small", SECOND)):
        with SAM2TritonClient(url, asked) as client:
            assert client.is_ready()
            client.set_image(coffee)
            found = client.segment([POINT])
            assert found.result["model"] == answers
            masks[asked] = found.masks.masks
    np.testing.assert_array_equal(masks["sam2:tiny"], masks[SECOND])
    with SAM2TritonClient(url, "sam2.1:large") as client:
        assert not client.is_ready()
        with pytest.raises(NotFound, match=r"does not serve sam2\.1:large"):
            client.set_image(coffee)


def tool_inputs(module: Any, small: Small) -> list[Any]:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in small.spec.encoder.outputs} | {
        "point_coords": np.zeros((1, 1, 2), np.float32),
        "point_labels": np.ones((1, 1), np.float32),
        "mask_input": np.zeros((1, 1, *[small.spec.decoder.mask_side] * 2), np.float32),
        "has_mask_input": np.zeros(1, np.float32),
    }
    inputs = []
    for name, array in arrays.items():
        inputs.append(module.InferInput(name, list(array.shape), "FP32"))
        inputs[-1].set_data_from_numpy(array)
    return inputs


@pytest.mark.parametrize("priority", [0, 1, 2, 7])
def test_a_tools_requests_may_have_a_priority(running: RunningServer, small: Small, priority: int) -> None:
    with http.InferenceServerClient(running.urls["HTTP"].removeprefix("http://")) as client:
        answer = client.infer("tool_decoder", tool_inputs(http, small), priority=priority)
        assert answer.as_numpy("iou_predictions").shape == (1, 1)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpc.InferenceServerClient(running.urls["gRPC"].removeprefix("grpc://")) as client:
        answer = client.infer("tool_decoder", tool_inputs(grpc, small), priority=priority)
        assert answer.as_numpy("iou_predictions").shape == (1, 1)
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        client.async_stream_infer("tool_decoder", tool_inputs(grpc, small), priority=priority)
        result, error = answers.get(timeout=60)
        client.stop_stream()
    assert error is None
    assert result.as_numpy("iou_predictions").shape == (1, 1)


@pytest.mark.usefixtures("patient_reaping")
def test_a_variants_process_is_watched_too(running: RunningServer, coffee: bytes) -> None:
    supervisor = running.supervisor
    before = int(str(supervisor.status["reloads"]))
    with SAM2TritonClient(running.urls["HTTP"], SECOND) as client:
        client.set_image(coffee)
        expected = client.segment([POINT]).masks.masks
        folder = supervisor.process.in_flight_folder
        eventually(lambda: requests_in_flight(folder, "sam2.1_small") == 0, "the end of all requests")
        stubs = {model: pid for pid, model in supervisor.process.model_pids.items()}
        os.kill(stubs["sam2.1_small"], signal.SIGKILL)
        eventually(lambda: supervisor.status["reloads"] == before + 1, "the reload")
        np.testing.assert_array_equal(client.segment([POINT]).masks.masks, expected)
    after = {model: pid for pid, model in supervisor.process.model_pids.items()}
    assert {model for model in stubs if stubs[model] != after[model]} == {"sam2.1_small"}


def test_another_default_comes_while_it_serves(running: RunningServer, folder: Path, coffee: bytes) -> None:
    """The last test here: it renames. A client that asked for an id never gets another model's masks."""
    with SAM2TritonClient(running.urls["HTTP"], "sam2:tiny") as client, SAM2TritonClient(running.urls["HTTP"]) as any_:
        client.set_image(coffee)
        any_.set_image(coffee)
        assert any_.segment([POINT]).result["model"] == "sam2:tiny"
        assert choose_name(get_spec(SECOND), folder, make_default=True) == "sam2"
        eventually(lambda: any_.segment([POINT]).result["model"] == SECOND, "the new default")
        for ask in (lambda: client.segment([POINT]), lambda: client.set_image(coffee)):
            with pytest.raises(NotFound, match="does not serve sam2:tiny"):
                ask()
        assert health(running)["problems"] == {}
