"""Without torch: every command tells the same state, and each advice works when it is followed as it stands."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.unit.cli.helpers import Ended, assert_one_sentence, run_main
from tests.unit.serving_helpers import write_repository
from triton_sam.models.catalog import get_spec
from triton_sam.models.vlm_weights import VlmStore
from triton_sam.models.weights import WeightStore
from triton_sam.repository.vlms import find_vlms

ROOT = Path(__file__).resolve().parents[3]


class CommandLine:
    """Types commands as a user does, with or without torch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self._has_torch = False

    def __call__(self, command: str) -> Ended:
        with self._monkeypatch.context() as patch:
            if not self._has_torch:
                patch.setitem(sys.modules, "torch", None)
                patch.delitem(sys.modules, "triton_sam.export.run", raising=False)
            words = shlex.split(command)
            assert words[0] == "triton-sam"
            return run_main(*words[1:], monkeypatch=patch, capsys=self._capsys)

    def follow(self, step: str) -> Ended | None:
        """Types one step of an advice. An installation is checked word by word, and then counts as done."""
        if step.startswith("triton-sam "):
            return self(step)
        before, _, requirement = step.partition(" -e ")
        assert before.endswith("pip install")
        assert Path(shlex.split(before)[0]).name in ("pip", Path(sys.executable).name, "uv")
        (word,) = shlex.split(requirement)
        folder, extras = re.fullmatch(r"(.+)\[([a-z,]+)\]", word).groups()  # type: ignore[union-attr]
        project = (Path(folder) / "pyproject.toml").read_text()
        for extra in extras.split(","):
            (packages,) = re.findall(rf"^{extra} = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
            assert '"torch' in packages
        self._has_torch = True
        return None


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setattr(VlmStore, "is_installed", lambda _, spec: spec.source is None)
    return CommandLine(monkeypatch, capsys)


def states(type_in: CommandLine, model_id: str) -> set[str]:
    """The states of one model in `models`, `models show` and `doctor`."""
    (row,) = [line for line in type_in("triton-sam models").out.splitlines() if line.startswith(f"{model_id} ")]
    found = {re.split(r"\s{2,}", row)[2]}
    found |= set(re.findall(r"^  state +(.+)$", type_in(f"triton-sam models show {model_id}").out, re.MULTILINE))
    pattern = rf"^\w+ +{re.escape(model_id)} +([^:]+): "
    return found | set(re.findall(pattern, type_in("triton-sam doctor").out, re.MULTILINE))


def steps_in(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_a_vision_language_model(type_in: CommandLine, home: Path) -> None:
    write_repository(home / "model_repository")
    done = type_in("triton-sam setup vlm:shapes")
    assert done.code == 0
    assert done.out.startswith("vlm:shapes needs torch: shapes, shapes_stream in ")
    assert "ready" not in done.out
    assert states(type_in, "vlm:shapes") == {"needs torch"}
    checked = type_in("triton-sam doctor")
    assert checked.code == 1
    (finding,) = [line for line in checked.out.splitlines() if line.split()[:2] == ["wrong", "vlm:shapes"]]
    refused = type_in("triton-sam serve vlm:shapes")
    assert_one_sentence(refused, "vlm:shapes needs torch: ")
    advices = {tuple(steps_in(text)) for text in (done.out, finding, refused.err)}
    assert len(advices) == 1, "the same steps everywhere"
    installation, serve = advices.pop()
    type_in.follow(installation)
    assert serve == "triton-sam serve"
    assert states(type_in, "vlm:shapes") == {"ready"}
    assert re.search(r"^fine +vlm:shapes ", type_in("triton-sam doctor").out, re.MULTILINE)


def test_a_bare_checkpoint(type_in: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `triton-sam pull sam1:mobile` leaves."""
    spec, store = get_spec("sam1:mobile"), WeightStore(home)
    store.blobs.mkdir(parents=True)
    with store.path(spec.checkpoints[0]).open("wb") as sparse:
        sparse.truncate(spec.checkpoints[0].size)
    assert states(type_in, spec.id) == {"needs torch"}
    (line,) = [line for line in type_in("triton-sam models show sam1:mobile").out.splitlines() if "  next " in line]
    installation, setup = steps_in(line)
    for command in (setup, f"triton-sam serve {spec.id}", f"triton-sam export {spec.id}"):
        assert_one_sentence(type_in(command), f"an export needs torch: {installation}\n")
    type_in.follow(installation)
    assert states(type_in, spec.id) == {"downloaded"}
    exported: list[str] = []

    def set_up(request: object) -> list[str]:
        exported.append(request.spec.id)  # type: ignore[attr-defined]
        write_repository(request.repository, request.spec)  # type: ignore[attr-defined]
        return ["sam1"]

    monkeypatch.setattr("triton_sam.repository.setup_models.set_up", set_up)
    done = type_in.follow(setup)
    assert done is not None
    assert (done.code, exported) == (0, [spec.id])
    assert done.out.startswith("sam1:mobile is ready: sam1 in ")
    assert states(type_in, spec.id) == {"ready"}


def test_a_model_that_is_not_there(type_in: CommandLine) -> None:
    assert states(type_in, "sam2.1:large") == {"not there"}
    (line,) = [line for line in type_in("triton-sam models show sam2.1:large").out.splitlines() if "  next " in line]
    installation, setup = steps_in(line)
    assert installation.endswith(f"-e '{ROOT}[export]'")
    assert setup == "triton-sam setup sam2.1:large"


def test_vision_language_models_alone_do_not_bring_another_model(type_in: CommandLine, home: Path) -> None:
    type_in("triton-sam setup vlm:shapes")
    assert_one_sentence(type_in("triton-sam serve"), "vlm:shapes needs torch: ")
    assert set(find_vlms(home / "model_repository")) == {"shapes"}
    assert not (home / "model_repository" / "sam2").exists()
