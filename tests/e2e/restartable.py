"""A whole server, Triton included, that a test stops and starts again."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import httpx
from PIL import Image

from triton_sam.models.specs import ModelSpec
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

ONE_EMBEDDING = 16_777_216


class Restartable:
    """Comes back at the same ports after a stop.

    Args:
        embeddings: how many images it keeps at a time.
    """

    def __init__(self, repository: Path, spec: ModelSpec, home: Path, embeddings: int) -> None:
        self._repository, self._spec, self._home = repository, spec, home
        self._environment = {"TRITON_SAM_CACHE_BYTES": str(embeddings * ONE_EMBEDDING)}
        self._ports = Ports(0, 0, 0, 0)
        self._others = 0
        self._stack = contextlib.ExitStack()
        self.start()

    def start(self) -> None:
        running: RunningServer = self._stack.enter_context(
            serving(
                ServingOptions(
                    self._repository,
                    {"sam2": self._spec},
                    Settings(home=self._home),
                    ports=self._ports,
                    environment=self._environment,
                )
            )
        )
        self._ports = running.ports
        self.url = running.urls["service"]

    def stop(self) -> None:
        self._stack.close()

    def forget(self) -> None:
        """Has another image encoded, so that the page's is not there any more."""
        self._others += 1
        picture = io.BytesIO()
        Image.new("RGB", (64, 64), (self._others, 0, 0)).save(picture, "PNG")
        files = {"image": picture.getvalue()}
        answer = httpx.post(f"{self.url}/v1/images", files=files, timeout=120, trust_env=False)
        assert answer.status_code == 200
