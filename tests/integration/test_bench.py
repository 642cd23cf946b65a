"""``triton-sam bench`` on a real server, as small as it goes: what is written, never how quick it was."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.integration.conftest import ExportTrial
from triton_sam.bench import results
from triton_sam.cli.bench import bench_app
from triton_sam.models.catalog import get_spec
from triton_sam.repository.setup import write_exported

pytestmark = [pytest.mark.triton, pytest.mark.part("bench"), pytest.mark.timeout(600), pytest.mark.torch]
MODEL = "sam1:mobile"
HAS_PLOTS = importlib.util.find_spec("matplotlib") is not None


@pytest.fixture(scope="module")
def small(export_trial: ExportTrial, embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the family's smallest network, shrunk further."""
    repository = tmp_path_factory.mktemp("bench") / "model_repository"
    write_exported(get_spec(MODEL), export_trial(MODEL), repository)
    return repository


def bench(small: Path, folder: Path, command: str, *words: str) -> results.Result:
    """Runs a command; a missed bar (exit code 1) is no failure here."""
    common = ["--model", MODEL, "--model-repository", str(small), "--output", str(folder), "--warm-up", "0"]
    done = CliRunner().invoke(bench_app, [command, *common, *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1), done.output
    result = results.read(folder)
    assert result.name == command
    assert result.about["model"] == MODEL
    assert result.about["tritonserver"].startswith("2.")
    assert (folder / "result.md").read_text().count("| ") > len(result.figures)
    pictures = {path.name for path in folder.glob("*.png")}
    assert pictures == ({f"{chart.name}.png" for chart in result.charts} if HAS_PLOTS else set())
    return result


def names(result: results.Result) -> set[str]:
    return {figure.name for figure in result.figures}


def test_session(small: Path, tmp_path: Path) -> None:
    result = bench(small, tmp_path, "session", "--rounds", "2", "--samples", "1", "--side", "256")
    ways = ("HTTP", "gRPC", "plain HTTP")
    assert {f"1 image + 10 masks, {way}" for way in ways} <= names(result)
    assert all(len(series.values) == 2 for series in result.series)


def test_encode(small: Path, tmp_path: Path) -> None:
    result = bench(small, tmp_path, "encode", "--rounds", "1", "--samples", "2")
    assert {"encode, HTTP", "encode, gRPC", "encoder alone", "of it encoder, HTTP"} <= names(result)


def test_click(small: Path, tmp_path: Path) -> None:
    result = bench(small, tmp_path, "click", "--rounds", "1", "--samples", "1", "--side", "256")
    forms = {f"click, {form}, {protocol}" for form in ("bits", "rle", "png", "logits") for protocol in ("HTTP", "gRPC")}
    assert forms | {"64 prompts in a request", "cost of one more prompt"} <= names(result)
    sizes = {figure.name: figure.value for figure in result.figures if figure.name.startswith("bytes of a click")}
    assert sizes["bytes of a click, logits, HTTP"] > 256  # kB: the logits alone are 262
    assert sizes["bytes of a click, rle, gRPC"] < 100


def test_throughput(small: Path, tmp_path: Path) -> None:
    result = bench(small, tmp_path, "throughput", "--most", "2", "--seconds", "1", "--side", "256")
    assert {"clicks a second, 2 clients", "images a second, 1 client"} <= names(result)
    assert not any("Error" in figure.detail for figure in result.figures)
    assert sum(len(series.values) for series in result.series) > 0


def test_memory(small: Path, tmp_path: Path) -> None:
    result = bench(small, tmp_path, "memory", "--images", "6", "--cached", "6", "--cache-bytes", "10000000")
    cache = {series.name: series.values for series in result.series}
    assert max(cache["cache, small cache"]) <= 10
    assert cache["cache, large cache"] == sorted(cache["cache, large cache"])
    assert len(cache["server, small cache"]) == 7


def test_compare(small: Path, tmp_path: Path) -> None:
    result = bench(small, tmp_path, "compare", "--rounds", "2", "--samples", "1", "--side", "256")
    for way in ("(a) bare engine", "(b) this server, HTTP", "(c) two stages, gRPC", "(d) transformers, eager"):
        assert {f"encode, {way}", f"click, {way}"} <= names(result)
    shares = [figure for figure in result.figures if figure.name.startswith("bytes of an RLE click")]
    assert len(shares) == 2
    assert all(figure.reached for figure in shares)
    # The same graphs by three ways give the same mask; (d) has other weights here, or says that it has.
    assert not any(note.startswith(("(a)", "(b)", "(c)")) for note in result.notes), result.notes


def test_a_server_that_runs_already(small: Path, tmp_path: Path) -> None:
    from tests.integration.serve_folder import serve_folder

    with serve_folder(small, tmp_path / "home") as running:
        words = ("--rounds", "1", "--samples", "1", "--side", "256", "--url", running.urls["gRPC"])
        common = ["--model", MODEL, "--output", str(tmp_path / "out"), "--warm-up", "0", *words]
        done = CliRunner().invoke(bench_app, ["session", *common])
        assert done.exit_code == 0, done.output
    result = results.read(tmp_path / "out")
    assert result.about["server"] == running.urls["gRPC"]
    assert "1 image + 10 masks, gRPC" in names(result)
    assert not {"1 image + 10 masks, HTTP", "1 image + 10 masks, plain HTTP"} & names(result)
