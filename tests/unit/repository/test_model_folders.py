"""Versions in a repository, and writers that are killed."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.repository_helpers import Weights, content_below, nothing_left_beside, parsed, write_models
from triton_sam.errors import SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.repository.model_folders import holds, model_state, newest_version, served_spec, versions, writing
from triton_sam.repository.segmenters import choose_name, find_name, find_segmenters, is_current

SPEC = get_spec(DEFAULT_MODEL)
LARGE = get_spec("sam2.1:large")
EXPORTED_TINY = dataclasses.replace(SPEC, graphs=get_spec("sam2.1:tiny").graphs)


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    return Weights(tmp_path / "weights")


@pytest.fixture
def graphs(weights: Weights) -> tuple[Path, Path]:
    return weights.make()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "home" / "model_repository"


# versions


def test_other_files_are_the_next_version_of_all_three(weights: Weights, repository: Path) -> None:
    write_models(SPEC, *weights.make("1"), repository)
    write_models(SPEC, *weights.make("2"), repository)
    for name in ("sam2", "sam2_encoder", "sam2_decoder"):
        assert versions(repository / name) == [1, 2]
    content = content_below(repository)
    assert content["sam2/1/encoder.onnx"] == b"the encoder 1"
    assert content["sam2/2/encoder.onnx"] == content["sam2_encoder/2/model.onnx"] == b"the encoder 2"
    assert content["sam2/2/decoder.onnx"] == content["sam2_decoder/2/model.onnx"] == b"the decoder 2"
    assert is_current(SPEC, repository)
    assert nothing_left_beside(repository)


def test_one_other_file_is_enough(weights: Weights, repository: Path) -> None:
    first, second = weights.make("1"), weights.make("2")
    write_models(SPEC, *first, repository)
    write_models(SPEC, first[0], second[1], repository)
    assert versions(repository / "sam2_encoder") == [1, 2]
    assert (repository / "sam2_encoder/2/model.onnx").read_bytes() == b"the encoder 1"


@pytest.mark.parametrize("copied", [False, True])
def test_the_same_files_change_nothing(copied: bool, weights: Weights, repository: Path, tmp_path: Path) -> None:
    graphs = weights.make(data=True)
    write_models(LARGE, *graphs, repository)
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*")}
    if copied:
        shutil.copytree(graphs[0].parent, tmp_path / "copy")
        graphs = tmp_path / "copy" / "encoder.onnx", tmp_path / "copy" / "decoder.onnx"
    write_models(LARGE, *graphs, repository)
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*")} == before


@pytest.mark.parametrize("change", ["more", "other", "gone"])
def test_other_external_data_are_another_version(change: str, weights: Weights, repository: Path) -> None:
    encoder, decoder = weights.make(data=change != "more")
    write_models(SPEC, encoder, decoder, repository)
    data = encoder.with_name("encoder.onnx_data")
    data.unlink(missing_ok=True)  # the repository's is a link to it
    if change != "gone":
        data.write_bytes(b"others!!")
    write_models(SPEC, encoder, decoder, repository)
    assert versions(repository / "sam2") == [1, 2]


def test_other_graphs_are_another_version(graphs: tuple[Path, Path], repository: Path) -> None:
    write_models(SPEC, *graphs, repository)
    write_models(EXPORTED_TINY, *graphs, repository)
    assert versions(repository / "sam2") == [1, 2]
    assert find_segmenters(repository) == {"sam2": EXPORTED_TINY}
    assert served_spec(SPEC, repository / "sam2" / "1") == SPEC


def test_the_two_newest_versions_are_kept(weights: Weights, repository: Path) -> None:
    for mark in "abcde":
        write_models(SPEC, *weights.make(mark), repository)
    for name in ("sam2", "sam2_encoder", "sam2_decoder"):
        assert versions(repository / name) == [4, 5]
    assert (repository / "sam2/5/encoder.onnx").read_bytes() == b"the encoder e"
    assert nothing_left_beside(repository)


def test_only_numbers_are_versions(tmp_path: Path) -> None:
    for name in ("1", "10", "9", "01", "0", "x", "2x", "-3", "²"):
        (tmp_path / name).mkdir()
    (tmp_path / "11").write_text("a file")
    assert versions(tmp_path) == [1, 9, 10]
    assert newest_version(tmp_path) == 10
    assert newest_version(tmp_path / "nothing") == 0


def test_a_failure_keeps_the_old_model_and_leaves_nothing_behind(
    weights: Weights, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_models(SPEC, *weights.make("1"), repository)
    before = content_below(repository)
    with pytest.raises(SetupError, match=r"missing\.onnx is missing"):
        write_models(SPEC, tmp_path / "missing.onnx", weights.make("1")[1], repository)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(SetupError, match="No space left on device"):
        write_models(SPEC, *weights.make("2"), repository)
    assert content_below(repository) == before
    assert nothing_left_beside(repository)


def test_a_missing_twin_is_written_at_the_version_of_the_others(weights: Weights, repository: Path) -> None:
    for mark in "12":
        write_models(SPEC, *weights.make(mark), repository)
    shutil.rmtree(repository / "sam2_encoder")
    assert not is_current(SPEC, repository)
    write_models(SPEC, *weights.make("2"), repository)
    assert versions(repository / "sam2_encoder") == [2]
    assert versions(repository / "sam2") == [1, 2]
    assert is_current(SPEC, repository)


KILLED_WRITERS = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from triton_sam.models.catalog import get_spec
from triton_sam.repository.segmenters import choose_name, write_models

start, repository, graphs, states = map(Path, sys.argv[1:5])
spec, make_default = get_spec(sys.argv[5]), sys.argv[6] == "default"

def counted(call):
    def wrapper(*arguments, **options):
        global steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return wrapper

def write():
    for name in ("mkdir", "link", "rename", "replace", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    Path.write_text = counted(Path.write_text)
    name = choose_name(spec, repository, make_default)
    write_models(spec, graphs / "encoder.onnx", graphs / "decoder.onnx", repository, name=name)
    os._exit(0)

for steps in itertools.count():
    shutil.rmtree(repository.parent)
    shutil.copytree(start, repository)
    child = os.fork()
    if child == 0:
        write()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL), ended
    if ended == 0:
        break
    shutil.copytree(repository.parent, states / str(steps))
"""


def assert_every_version_is_whole(repository: Path) -> None:
    for folder in repository.iterdir():
        assert model_state(folder) is not None, folder
        assert parsed((folder / "config.pbtxt").read_text()).name == folder.name
        segmenter = not folder.name.endswith(("_encoder", "_decoder"))
        wanted = {"model.py", "encoder.onnx", "decoder.onnx", "graphs.json"} if segmenter else {"model.onnx"}
        for version in versions(folder):
            present = {path.name: path.stat().st_size for path in (folder / str(version)).iterdir()}
            assert wanted <= set(present)
            assert all(present.values())


@pytest.mark.parametrize(
    ("model_id", "kind"),
    [(SPEC.id, "version"), pytest.param(LARGE.id, "default", marks=pytest.mark.part("faults"))],
)
def test_a_writer_killed_at_any_moment(
    model_id: str, kind: str, weights: Weights, repository: Path, tmp_path: Path
) -> None:
    """Before each change of the disk: the repository is whole, and the next writer ends the work and sweeps."""
    write_models(SPEC, *weights.make("1"), repository)
    start, states = tmp_path / "start", tmp_path / "states"
    shutil.copytree(repository, start)
    newer = weights.make("2")
    arguments = [str(path) for path in (start, repository, newer[0].parent, states)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WRITERS, *arguments, model_id, kind],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spec = get_spec(model_id)
    killed = [home / repository.name for home in states.iterdir()]
    assert len(killed) > 5, "how many changes there are depends on the Python"
    assert any(not nothing_left_beside(left) for left in killed), "no kill came in the middle of the work"
    for left in killed:
        assert_every_version_is_whole(left)
        write_models(spec, *newer, left, name=choose_name(spec, left, kind == "default"))
        assert is_current(spec, left)
        assert find_name(spec, left) == "sam2"
        newest = left / "sam2" / str(newest_version(left / "sam2"))
        assert (newest / "encoder.onnx").read_bytes() == b"the encoder 2"
        assert nothing_left_beside(left)


def test_writers_wait_for_each_other(weights: Weights, repository: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from triton_sam.models.catalog import get_spec; "
        "from triton_sam.repository.segmenters import write_models; folder = Path(sys.argv[2]); "
        "write_models(get_spec('sam2:tiny'), folder / 'encoder.onnx', folder / 'decoder.onnx', Path(sys.argv[1]))"
    )
    folders = [weights.make(mark)[0].parent for mark in "1234"]
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(repository), str(folder)], stderr=subprocess.PIPE)
        for folder in folders
    ]
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
    for name in ("sam2", "sam2_encoder", "sam2_decoder"):
        assert versions(repository / name) == [3, 4]
    assert nothing_left_beside(repository)


# what stands there


def test_model_state(weights: Weights, repository: Path) -> None:
    assert model_state(repository / "sam2") is None
    write_models(SPEC, *weights.make("1"), repository)
    first = model_state(repository / "sam2")
    assert first is not None
    assert first.version == 1
    assert first.config == (repository / "sam2" / "config.pbtxt").read_text()
    write_models(SPEC, *weights.make("2"), repository)
    assert model_state(repository / "sam2") == dataclasses.replace(first, version=2)


def test_holds_sees_data_that_should_not_be_there(weights: Weights, tmp_path: Path) -> None:
    encoder, _ = weights.make()
    (tmp_path / "version").mkdir()
    shutil.copy(encoder, tmp_path / "version" / "model.onnx")
    assert holds(tmp_path / "version", {"model.onnx": encoder})
    (tmp_path / "version" / "encoder.onnx_data").write_bytes(b"x")
    assert not holds(tmp_path / "version", {"model.onnx": encoder})


def test_what_a_killed_writer_left_is_swept(repository: Path) -> None:
    left = repository.parent / f".{repository.name}-writing-999999"
    (left / "1").mkdir(parents=True)
    other = repository.parent / ".something-else"
    other.mkdir()
    with writing(repository):
        assert not left.exists()
    assert other.exists()


@pytest.mark.parametrize(("content", "learned"), [('{"assembled": "5e"}', False), ("{}", True), ("no JSON", True)])
def test_the_memory_of_this_package_was_trained_without_corrections(
    content: str, learned: bool, tmp_path: Path
) -> None:
    (tmp_path / "memory.json").write_text(content)
    spec = served_spec(get_spec("sam2:tiny_video"), tmp_path)
    assert spec.memory is not None
    assert spec.memory.learned_corrections is learned
