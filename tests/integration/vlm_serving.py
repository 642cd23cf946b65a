"""Serves vision-language models with small checkpoints on the real Triton, and runs their networks as a reference."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.analytic import analytic_spec, write_analytic
from tests.server_readings import counters
from triton_sam.models.specs import ModelSpec
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.repository.vlms import find_vlms, write_vlm
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

SCHEMES = ("HTTP", "gRPC")
PATIENCE = 60.0
#: A model.py that counts the network's runs in a file and delays each by some seconds.
_OBSERVED = """import time
from pathlib import Path

from triton_sam.backend import vlm


class TritonPythonModel(vlm.TritonPythonModel):
    def _load(self):
        engine = super()._load()
        engine._network.register_forward_hook(self._step)
        return engine

    def _step(self, *_):
        with Path({steps!r}).open("a") as file:
            file.write(".")
        time.sleep({seconds})
"""


@contextlib.contextmanager
def serving_vlms(
    folder: Path,
    checkpoints: Mapping[str, Path | None],
    *,
    repository: Path | None = None,
    segmenters: dict[str, ModelSpec] | None = None,
    slow: Mapping[str, float] | None = None,
    **settings: str,
) -> Iterator[RunningServer]:
    """A server on free ports: ``with serving_vlms(tmp_path, {"vlm:shapes": None}, vlm_batch="2") as running``.

    Args:
        folder: for all files that are written.
        checkpoints: catalogue id -> folder; None for the checkpoint in the package.
        repository: has the models of ``segmenters``; by default a new one.
        slow: catalogue id -> seconds for each token; their tokens are counted: see :func:`steps`.
    """
    repository = repository or folder / "model_repository"
    for model_id, checkpoint in checkpoints.items():
        write_vlm(get_vlm(model_id), repository, checkpoint)
    for model_id, seconds in (slow or {}).items():
        source = repository / get_vlm(model_id).stream_name / "1" / "model.py"
        source.write_text(_OBSERVED.format(steps=str(folder / get_vlm(model_id).name), seconds=seconds))
    with serving(
        ServingOptions(
            repository,
            segmenters or {},
            Settings(home=folder / "home"),
            vlms=find_vlms(repository),
            ports=Ports(0, 0, 0, 0),
            environment={f"TRITON_SAM_{name.upper()}": value for name, value in settings.items()},
        )
    ) as running:
        yield running


def steps(folder: Path, model: str) -> int:
    """How many times the network of a slow model has run."""
    counted = folder / model
    return counted.stat().st_size if counted.exists() else 0


def figure(running: RunningServer, model: str, name: str) -> int:
    """One of a model's counters, without ``triton_sam_vlm_`` and ``_total``."""
    return int(counters(running, model).get(f"vlm_{name}_total", 0))


def server_log(running: RunningServer) -> str:
    return running.supervisor.process.log_path.read_text(errors="replace")


# -- images ------------------------------------------------------------------------------------------------------


def picture(number: int, size: tuple[int, int] = (90, 60)) -> Image.Image:
    """Noise with a tint and a size that differ for each number."""
    generator = np.random.default_rng(number)
    shape = (size[1] + 3 * number, size[0] + number, 3)
    tint = generator.integers(60, 250, 3)
    return Image.fromarray((generator.random(shape) * tint).astype(np.uint8))


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def data_url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


# -- straight to Triton ------------------------------------------------------------------------------------------


def generate_stream(running: RunningServer, model: str, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Triton's own server-sent events."""
    connection = http.client.HTTPConnection(running.reach, running.ports.http, timeout=PATIENCE)
    with contextlib.closing(connection):
        send_question(connection, model, document)
        answer = connection.getresponse()
        assert answer.getheader("Content-Type", "").startswith("text/event-stream"), answer.read()
        lines = answer.read().decode().splitlines()
    return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]


def send_question(connection: http.client.HTTPConnection, model: str, document: Mapping[str, Any]) -> None:
    body = json.dumps(document)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", f"/v2/models/{model}_stream/generate_stream", body, headers)


# -- without a server --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to one thread: networks this small are slower on several, and much slower beside other programs."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Reference:
    """The text that transformers alone generates, one question at a time."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self._mode = torch.inference_mode
        self.network = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.processor = AutoProcessor.from_pretrained(folder)

    def chat(self, texts: Sequence[str]) -> str:
        """User and assistant in turn -> the whole prompt."""
        parts: list[list[dict[str, str]]] = [[{"type": "text", "text": text}] for text in texts]
        parts[0].insert(0, {"type": "image"})
        turns = [{"role": "assistant" if at % 2 else "user", "content": part} for at, part in enumerate(parts)]
        return str(self.processor.apply_chat_template(turns, add_generation_prompt=True))

    def decoded(self, image: Image.Image, prompt: str, tokens: int) -> str:
        inputs = self.processor(images=image, text=prompt, return_tensors="pt")
        with self._mode():
            whole = self.network.generate(**inputs, do_sample=False, max_new_tokens=tokens)[0]
        said = whole[inputs["input_ids"].shape[1] :]
        return str(self.processor.tokenizer.decode(said, skip_special_tokens=True))


def llava_says(folder: Path) -> Callable[..., str]:
    """(image, question or conversation, tokens) -> text."""
    said = Reference(folder)

    def ask(image: Image.Image, texts: str | Sequence[str], tokens: int = 24) -> str:
        return said.decoded(image, said.chat([texts] if isinstance(texts, str) else texts), tokens).strip()

    return ask


def kosmos2_says(folder: Path) -> Callable[..., str]:
    said = Reference(folder)

    def ask(image: Image.Image, text: str, tokens: int = 24) -> str:
        asked = f"Question: {text} Answer:" if text.endswith("?") else text
        prompt = text if text.startswith("<grounding>") else f"<grounding> {asked}"
        return str(said.processor.post_process_generation(said.decoded(image, prompt, tokens))[0]).strip()

    return ask


def moondream2_says(folder: Path) -> Callable[..., str]:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()

    def ask(image: Image.Image, text: str, tokens: int = 24) -> str:
        settings = {"temperature": 0, "max_tokens": tokens}
        return str(network.query(image, text, settings={**settings, "variant": None})["answer"]).strip()

    return ask


# -- fixtures, known to all of tests/integration through its conftest ---------------------------------------------

Says = Mapping[str, Callable[..., str]]


@pytest.fixture(scope="session")
def vlm_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Catalogue id -> a small checkpoint."""
    from tests import vlm_checkpoints as checkpoints

    makers = {"llava": checkpoints.make_llava, "kosmos2": checkpoints.make_kosmos2}
    makers["moondream2"] = checkpoints.make_moondream2
    return {f"vlm:{name}": make(tmp_path_factory.mktemp(name)) for name, make in makers.items()}


@pytest.fixture(scope="session")
def grounded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.vlm_checkpoints import make_kosmos2

    with one_thread():
        return make_kosmos2(tmp_path_factory.mktemp("grounded"), grounded=True)


@pytest.fixture(scope="package")
def vlm_server(
    embedded_server: None, vlm_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """All four models and the analytic segmenter; requests within a quarter of a second form one batch."""
    folder = tmp_path_factory.mktemp("vlm_server")
    repository = write_analytic(folder / "model_repository", tmp_path_factory.mktemp("graphs"))
    checkpoints = {**vlm_folders, "vlm:shapes": None}
    segmenters = {"sam2": analytic_spec()}
    with serving_vlms(
        folder, checkpoints, repository=repository, segmenters=segmenters, vlm_gather_ms="250"
    ) as running:
        yield running


@pytest.fixture(scope="session")
def says(vlm_folders: dict[str, Path]) -> Iterator[Says]:
    """Model's name -> a function (image, question, tokens) that returns its text, decoded greedily."""
    makers = {"llava": llava_says, "kosmos2": kosmos2_says, "moondream2": moondream2_says}
    with one_thread():
        yield {name: make(vlm_folders[f"vlm:{name}"]) for name, make in makers.items()}
