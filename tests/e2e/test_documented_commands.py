"""The documented commands with the published weights, as a reader runs them: an empty home, and page by page.

The demo is the server. Pages about other models, clusters and failures have tests of their own, which run for every
commit: tests/unit/test_docs_code.py names them.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.doc_pages import DOCS, Fence, fences
from triton_sam.core.samples import sample_photograph
from triton_sam.server.host import free_port

pytestmark = [
    pytest.mark.triton,
    pytest.mark.part("docs"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq"),
]
SET_UP_SECONDS = 900
BLOCK_SECONDS = 600
#: Not blocks of a reader's session: what serves.
SERVE = re.compile(r"^(TRITON_SAM_\w+=\S+ )*triton-sam serve( --service-port \d+)?$", re.MULTILINE)


@dataclass(frozen=True)
class Reader:
    """A person with a clone, an environment, and a folder of their own."""

    home: Path
    ports: Mapping[str, int]

    @property
    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
        return kept | {
            "PATH": path,
            "TRITON_SAM_HOME": str(self.home),
            "TRITON_URL": f"localhost:{self.ports['8000']}",
        }

    def run(self, fence: Fence, folder: Path) -> str:
        """Runs one block with the server's ports; every file that it names as output is there then."""
        code = re.sub(r"localhost:(\d+)", lambda match: f"localhost:{self.ports[match[1]]}", fence.code)
        shell = [sys.executable, "-c"] if fence.language == "python" else ["bash", "-euo", "pipefail", "-c"]
        done = subprocess.run(
            [*shell, code],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=BLOCK_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{fence}\n{code}\n{done.stdout}\n{done.stderr}"
        if fence.language == "bash":
            for name in re.findall(r"(?:--out|-o) ([\w./-]+)", code):
                assert name == "/dev/null" or (folder / name).exists(), f"{fence}: there is no {name}"
        return done.stdout

    def read(self, page: str, folder: Path) -> str:
        """Runs a page's blocks in order, Python's as one session, and returns what they print."""
        said, python = [], ""
        for fence in fences(DOCS / page):
            if fence.language not in ("bash", "python") or fence.not_run is not None or SERVE.search(fence.code):
                continue
            if fence.language == "python":
                python += fence.code
                fence = Fence(fence.page, fence.number, fence.line, "python", python, None)
            said.append(self.run(fence, folder))
        assert said, f"{page} has no commands"
        return "".join(said)


@pytest.fixture(scope="module")
def reader(embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """`triton-sam demo` in an empty home: it downloads, sets up, draws its picture, and serves."""
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("demo")
    ports = {"8000": free_port(), "8080": free_port()}
    reader = Reader(home, ports)
    command = ["triton-sam", "demo", "--http-port", str(ports["8000"]), "--service-port", str(ports["8080"])]
    command += ["--grpc-port=0", "--metrics-port=0"]
    with subprocess.Popen(
        command, cwd=folder, env=reader.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if "serving until" in line:
                    break
            if process.poll() is not None and "could not be downloaded" in "".join(said):
                pytest.skip("the weights are not available here")
            assert said, "the demo said nothing"
            assert "serving until" in said[-1], "".join(said)
            assert (folder / "demo" / "overlay.png").stat().st_size
            yield reader
        finally:
            process.terminate()
            process.wait(timeout=60)


def test_everything(reader: Reader, tmp_path: Path) -> None:
    assert "64 of 64" in reader.read("guides/everything.md", tmp_path)


def test_a_folder_of_images(reader: Reader, tmp_path: Path) -> None:
    reader.read("guides/batch.md", tmp_path)
    assert (tmp_path / "masks" / "report.html").stat().st_size
    # The pages after it go on with its folder of photographs.
    first = [fence for fence in fences(DOCS / "guides" / "batch_clusters.md") if fence.not_run is None][:1]
    first += [fence for fence in fences(DOCS / "guides" / "batch_libraries.md") if fence.not_run is None][:1]
    for fence in first:
        shutil.rmtree(tmp_path / "masks")
        reader.run(fence, tmp_path)


def test_another_language(reader: Reader, tmp_path: Path) -> None:
    reader.read("guides/other_language.md", tmp_path)
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


def test_two_stage_clients(reader: Reader, tmp_path: Path) -> None:
    assert "(1, 1, 256, 256)" in reader.read("guides/two_stage.md", tmp_path)


def test_a_team(reader: Reader) -> None:
    """Its only command without a certificate is that which serves."""
    codes = [fence.code for fence in fences(DOCS / "guides" / "annotation_team.md") if fence.not_run is None]
    assert all(SERVE.search(code) for code in codes)


def test_examples_of_the_http_reference(reader: Reader, tmp_path: Path) -> None:
    """Every call that docs/reference/http.md shows is answered with a status that it lists, if it can be with 200."""
    photograph = sample_photograph().read_bytes()
    for name in ("photo.jpg", "frame.jpg", "clip.mp4"):
        (tmp_path / name).write_bytes(photograph)
    service = f"localhost:{reader.ports['8080']}"
    embedding = f"curl -sf {service}/embedded_model?encoding=compress -F image=@photo.jpg -o embedding.gz"
    subprocess.run(embedding.split(), cwd=tmp_path, check=True)
    upload = f"curl -sf {service}/v1/images -F image=@photo.jpg"
    uploaded = subprocess.run(upload.split(), cwd=tmp_path, check=True, capture_output=True)
    key = json.loads(uploaded.stdout)["image_key"]
    for title, method, path, text in sections():
        called = re.findall(r"^Example: `(curl .*)`$", text, re.MULTILINE)
        for body in re.findall(r"^```json\n(.*)\n```$", text, re.MULTILINE):
            body = body.replace("5f2c...", key).replace("base64,...", f"base64,{base64.b64encode(photograph).decode()}")
            document = json.loads(body)
            if path == "/v1/everything":  # a thousand points take minutes on a CPU
                document["everything"] = {"points_per_side": 4}
            (tmp_path / "body.json").write_text(json.dumps(document))
            called.append(f"curl -s -X {method} localhost:8080{path} -H 'Content-Type: application/json' -d @body.json")
        assert called, f"{title} has no example"
        listed = set(re.findall(r"^\*\*(\d+)\*\*", text, re.MULTILINE))
        further = set(re.findall(r"\b\d{3}\b", "".join(re.findall(r"^Errors besides.*$", text, re.MULTILINE))))
        for command in called:
            command = command.replace("localhost:8080", service).replace("$id", "gone").replace("{video_id}", "gone")
            words = [*shlex.split(command), "-o", os.devnull, "-w", "%{http_code}"]
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
            # This server has neither videos nor a vision-language model.
            absent = path.startswith(("/v1/videos", "/v1/chat", "/v1/ground", "/v1/models/"))
            assert done.stdout in (further if absent else listed), f"{command}: {done.stdout}"


def sections() -> Iterator[tuple[str, str, str, str]]:
    """(title, method, path, text) of each route in the reference."""
    parts = re.split(r"^(##+ .*)$", (DOCS / "reference" / "http.md").read_text(), flags=re.MULTILINE)
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        if match := re.fullmatch(r"### `([A-Z]+) (/\S+)`", title):
            yield title, match[1], match[2], text


def test_the_demo_again(reader: Reader, tmp_path: Path) -> None:
    """In a home that has the model: one picture, beside the server that runs."""
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--service-port=0"]
    done = subprocess.run(
        ["triton-sam", "demo", "--once", *ports],
        cwd=tmp_path,
        env=reader.environment,
        capture_output=True,
        text=True,
        timeout=BLOCK_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sample_photograph().name in done.stdout
