from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from tests.unit.helpers import FileServer, model_file, model_spec
from triton_sam.errors import SetupError, WeightsError
from triton_sam.export import cpu_decoder, cpu_encoder, ort_to_onnx, raw_contract
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import Graphs, HttpSource, ModelSpec, Precision, Role, graphs_to_json
from triton_sam.models.weights import WeightStore
from triton_sam.repository import setup
from triton_sam.repository.export_cache import ExportRequest
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.repository.setup import SetupRequest, set_up, uninstall, write_exported

ENCODER, DECODER = b"an encoder", b"a decoder, longer"


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "home")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "home" / "model_repository"


@pytest.fixture(autouse=True)
def raw_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs under the contract without their making: graphs here are mere bytes."""

    def write(_spec: ModelSpec, encoder: Path, decoder: Path, folder: Path) -> tuple[Path, Path]:
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"{encoder.stem}-raw1.onnx", folder / f"{decoder.stem}-raw1.onnx"
        for source, target in zip((encoder, decoder), made, strict=True):
            target.write_bytes(b"raw: " + source.read_bytes())
        return made

    monkeypatch.setattr(raw_contract, "write_contract_pair", write)


def small_model(*, encoder_name: str = "encoder.onnx", urls: tuple[str, str] = ("http://e", "http://d")) -> ModelSpec:
    return model_spec(
        model_file(ENCODER, HttpSource(urls[0]), name=encoder_name),
        model_file(DECODER, HttpSource(urls[1]), name="decoder.onnx", role=Role.DECODER),
    )


def install(spec: ModelSpec, store: WeightStore) -> None:
    store.blobs.mkdir(parents=True)
    for file, content in zip(spec.files, (ENCODER, DECODER), strict=True):
        store.path(file).write_bytes(content)


def content_of(repository: Path) -> dict[str, bytes]:
    return {str(path.relative_to(repository)): path.read_bytes() for path in repository.rglob("*.onnx")}


EXPECTED = {
    "sam2/1/encoder.onnx": ENCODER,
    "sam2/1/decoder.onnx": DECODER,
    "sam2_encoder/1/model.onnx": b"raw: " + ENCODER,
    "sam2_decoder/1/model.onnx": b"raw: " + DECODER,
}
#: Of an export, which keeps the contract as it is.
PLAIN_PAIR = {"sam2_encoder/1/model.onnx": ENCODER, "sam2_decoder/1/model.onnx": DECODER}


def test_from_a_source_to_a_repository(store: WeightStore, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    steps: list[tuple[str, str]] = []

    def progress(file: Any, step: str) -> Any:
        steps.append((file.name, step))
        return lambda _done, _total: None

    with FileServer() as files:
        urls = files.add("/encoder.onnx", ENCODER), files.add("/decoder.onnx", DECODER)
        names = set_up(SetupRequest(small_model(urls=urls), store, repository, progress))
    assert names == ["sam2", "sam2_encoder", "sam2_decoder"]
    assert content_of(repository) == EXPECTED
    assert all((repository / name / "config.pbtxt").is_file() for name in names)
    assert ("encoder.onnx", "download") in steps
    assert ("decoder.onnx", "verify") in steps


def test_installed_files_are_taken_without_a_source(store: WeightStore, repository: Path) -> None:
    spec = small_model()
    install(spec, store)
    set_up(SetupRequest(spec, store, repository))
    assert content_of(repository) == EXPECTED


def test_a_model_that_cannot_be_had_leaves_no_repository(store: WeightStore, repository: Path) -> None:
    with pytest.raises(WeightsError, match=r"encoder\.onnx could not be downloaded"):
        set_up(SetupRequest(small_model(urls=("ftp://nowhere", "ftp://nowhere")), store, repository))
    assert not repository.exists()


def test_the_conversion_is_used(store: WeightStore, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_model(encoder_name="encoder.ort")
    install(spec, store)
    asked: list[Path] = []

    def as_onnx(source: Path, folder: Path) -> Path:
        assert folder == store.home / "converted"
        asked.append(source)
        if source.suffix == ".onnx":
            return source
        folder.mkdir()
        target = folder / f"{source.stem}.onnx"
        target.write_bytes(b"converted")
        return target

    monkeypatch.setattr(ort_to_onnx, "as_onnx", as_onnx)
    set_up(SetupRequest(spec, store, repository))
    assert asked == [store.path(file) for file in spec.files]
    assert content_of(repository)["sam2/1/encoder.onnx"] == b"converted"
    assert content_of(repository)["sam2_encoder/1/model.onnx"] == b"raw: converted"


def test_a_damaged_graph_leaves_no_repository(store: WeightStore, repository: Path) -> None:
    spec = small_model(encoder_name="encoder.ort")
    install(spec, store)
    with pytest.raises(SetupError, match="could not be converted"):
        set_up(SetupRequest(spec, store, repository))
    assert not repository.exists()


def test_without_onnxruntime(store: WeightStore, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "triton_sam.export.ort_to_onnx":
            raise ImportError("No module named 'onnxruntime'")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(setup, "write_models", lambda *_: pytest.fail("wrote"))
    with pytest.raises(SetupError, match=r"pip install .*\[server\]"):
        set_up(SetupRequest(small_model(), store, repository))
    assert not store.home.exists()


@pytest.mark.parametrize(
    ("model_id", "request_", "exported"),
    [
        ("sam2.1:large", ExportRequest(), True),
        ("sam2:tiny", ExportRequest(precision=Precision.INT8), True),
        ("sam2:tiny", ExportRequest(checkpoint=Path("mine.pt")), True),
        ("sam2:tiny", ExportRequest(image_size=512), True),
        ("sam2:tiny", ExportRequest(), False),
    ],
)
def test_what_is_not_ready_made_is_exported(
    store: WeightStore,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    model_id: str,
    request_: ExportRequest,
    exported: bool,
) -> None:
    asked = []
    monkeypatch.setattr(setup, "export_model", lambda *words, **_: (asked.append(words[2]), (Path("x"), {}))[1])
    monkeypatch.setattr(setup, "write_exported", lambda *_, **__: ["written"])
    monkeypatch.setattr(WeightStore, "pull", lambda *_: (_ for _ in ()).throw(WeightsError("pulled")))
    if exported:
        assert set_up(SetupRequest(get_spec(model_id), store, repository, export=request_)) == ["written"]
        assert asked == [request_]
    else:
        with pytest.raises(WeightsError, match="pulled"):
            set_up(SetupRequest(get_spec(model_id), store, repository, export=request_))


# exports


def export(folder: Path, spec: ModelSpec, mark: str = "") -> Path:
    """What an exporter leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "encoder.onnx").write_bytes(ENCODER + mark.encode())
    (folder / "encoder.onnx_data").write_bytes(b"numbers")
    (folder / "decoder.onnx").write_bytes(DECODER)
    (folder / "graphs.json").write_text(graphs_to_json(spec.graphs))
    (folder / "report.json").write_text("{}")
    return folder


def test_an_export_becomes_a_model(repository: Path, tmp_path: Path) -> None:
    large = get_spec("sam2.1:large")
    assert write_exported(large, export(tmp_path / "e", large), repository) == ["sam2", "sam2_encoder", "sam2_decoder"]
    assert content_of(repository) == EXPECTED | PLAIN_PAIR
    assert (repository / "sam2_encoder/1/encoder.onnx_data").read_bytes() == b"numbers"
    assert find_segmenters(repository) == {"sam2": large}


def test_an_export_beside_another_model_and_as_the_default(repository: Path, tmp_path: Path) -> None:
    large, small = get_spec("sam2.1:large"), get_spec("sam2.1:small")
    write_exported(large, export(tmp_path / "e", large), repository)
    assert write_exported(small, export(tmp_path / "s", small), repository)[0] == "sam2.1_small"
    assert write_exported(small, export(tmp_path / "s", small), repository, make_default=True)[0] == "sam2"
    assert find_segmenters(repository) == {"sam2": small, "sam2.1_large": large}


def test_an_export_over_ready_made_graphs_is_the_next_version(
    store: WeightStore, repository: Path, tmp_path: Path
) -> None:
    spec = small_model()
    install(spec, store)
    set_up(SetupRequest(spec, store, repository))
    write_exported(spec, export(tmp_path / "e", get_spec("sam2.1:tiny"), "fine-tuned"), repository)
    assert (repository / "sam2/2/encoder.onnx").read_bytes() == ENCODER + b"fine-tuned"
    assert (repository / "sam2/1/encoder.onnx").read_bytes() == ENCODER


@pytest.mark.parametrize("missing", ["encoder.onnx", "decoder.onnx", "graphs.json"])
def test_half_an_export(missing: str, repository: Path, tmp_path: Path) -> None:
    large = get_spec("sam2.1:large")
    folder = export(tmp_path / "e", large)
    (folder / missing).unlink()
    with pytest.raises(SetupError, match=missing):
        write_exported(large, folder, repository)
    assert not repository.exists()


def test_a_damaged_export(repository: Path, tmp_path: Path) -> None:
    large = get_spec("sam2.1:large")
    folder = export(tmp_path / "e", large)
    (folder / "graphs.json").write_text('{"side": "wide"}')
    with pytest.raises(SetupError, match="damaged"):
        write_exported(large, folder, repository)


# tear down


def test_everything_of_a_model_goes(store: WeightStore, repository: Path) -> None:
    spec = small_model()
    install(spec, store)
    set_up(SetupRequest(spec, store, repository))
    conversions = [store.home / "converted" / f"{store.path(file).stem}.onnx" for file in spec.files]
    bystanders = [store.home / "converted" / "another.onnx", repository / "mine" / "config.pbtxt"]
    for path in (*conversions, *bystanders):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    assert uninstall(spec, store, repository) == len(ENCODER) + len(DECODER)
    assert not store.is_installed(spec)
    assert not any(path.exists() for path in conversions)
    assert all(path.exists() for path in bystanders)
    assert [path.name for path in repository.iterdir()] == ["mine"]
    assert find_segmenters(repository) == {}


def test_a_model_goes_under_whatever_name_it_has(store: WeightStore, repository: Path, tmp_path: Path) -> None:
    large, small = get_spec("sam2.1:large"), get_spec("sam2.1:small")
    write_exported(large, export(tmp_path / "e", large), repository)
    write_exported(small, export(tmp_path / "s", small), repository)
    uninstall(small, store, repository)
    assert find_segmenters(repository) == {"sam2": large}
    assert len(list(repository.iterdir())) == 3


def test_nothing_to_tear_down(store: WeightStore, repository: Path) -> None:
    assert uninstall(small_model(), store, repository) == 0
    assert uninstall(small_model(), store, repository) == 0


def pretend_to_make(monkeypatch: pytest.MonkeyPatch, outcome: str = "made") -> list[Path]:
    """Fast graphs without their making; gives the plain ones that it was asked for."""
    asked: list[Path] = []

    def make(plain: Path, target: Path, graphs: Graphs, say: Any, *, eight_bits: bool = False) -> Path | None:
        asked.append(plain)
        if outcome == "refused":
            raise SetupError("too far off")
        if outcome == "nothing":
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((b"8 bits: " if eight_bits else b"fast: ") + plain.read_bytes())
        return target

    monkeypatch.setattr(cpu_decoder, "make_cpu_decoder", make)
    monkeypatch.setattr(cpu_encoder, "make_cpu_encoder", make)
    return asked


@pytest.mark.parametrize(
    ("option", "file", "content"),
    [
        ("cpu_encoder", "encoder_cpu_float32", b"fast: " + ENCODER),
        ("fast_encoder", "encoder_cpu_8bit", b"8 bits: " + ENCODER),
        ("fast_decoder", "decoder_cpu", b"fast: " + DECODER),
    ],
)
def test_a_fast_half_is_made_once(
    option: str, file: str, content: bytes, store: WeightStore, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pretend_to_make(monkeypatch)
    spec = small_model()
    install(spec, store)
    for _ in range(2):
        set_up(SetupRequest(spec, store, repository, **{option: True}))
    assert content_of(repository) == EXPECTED | {f"sam2/1/{file}.onnx": content}
    assert len(asked) == 1
    uninstall(spec, store, repository)
    assert not list((store.home / "converted").iterdir())


def test_8_bits_go_with_the_next_set_up_that_does_not_ask_for_them(
    store: WeightStore, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_to_make(monkeypatch)
    spec = small_model()
    install(spec, store)
    set_up(SetupRequest(spec, store, repository, cpu_encoder=True, fast_encoder=True))
    assert {"sam2/1/encoder_cpu_float32.onnx", "sam2/1/encoder_cpu_8bit.onnx"} <= set(content_of(repository))
    set_up(SetupRequest(spec, store, repository, cpu_encoder=True))
    assert (repository / "sam2/2/encoder_cpu_float32.onnx").is_file()
    assert not (repository / "sam2/2/encoder_cpu_8bit.onnx").exists()


def test_another_recipe_is_another_file(store: WeightStore, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend_to_make(monkeypatch)
    spec = small_model()
    install(spec, store)
    for recipe in (1, 2):
        monkeypatch.setattr(cpu_encoder, "RECIPE", recipe)
        set_up(SetupRequest(spec, store, repository, fast_encoder=True))
    assert len(asked) == 2
    uninstall(spec, store, repository)
    assert not list((store.home / "converted").iterdir())


@pytest.mark.parametrize(
    ("option", "half"), [("cpu_encoder", "encoder"), ("fast_encoder", "encoder"), ("fast_decoder", "decoder")]
)
@pytest.mark.parametrize("outcome", ["refused", "nothing"])
def test_without_a_fast_half_the_plain_one_is_served(
    outcome: str, option: str, half: str, store: WeightStore, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_to_make(monkeypatch, outcome)
    lines: list[str] = []
    spec = small_model()
    install(spec, store)
    set_up(SetupRequest(spec, store, repository, **{option: True}, say=lines.append))
    assert content_of(repository) == EXPECTED
    assert lines == ([f"the plain {half} is served: too far off"] if outcome == "refused" else [])


def test_an_export_gets_its_fast_decoder_anew(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pretend_to_make(monkeypatch)
    large = get_spec("sam2.1:large")
    folder = export(tmp_path / "e", large)
    for _ in range(2):
        write_exported(large, folder, repository, fast_decoder=True)
    assert (repository / "sam2/1/decoder_cpu.onnx").read_bytes().startswith(b"fast: ")
    assert asked == [folder / "decoder.onnx"] * 2
    write_exported(large, folder, repository)  # without it is another version
    assert not (repository / "sam2/2/decoder_cpu.onnx").exists()


@pytest.mark.parametrize(("model", "is_made"), [("sam2.1:large", True), ("sam1:vit_b", False)])
def test_an_export_gets_a_fast_encoder_if_it_has_windows(
    model: str, is_made: bool, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pretend_to_make(monkeypatch)
    spec = get_spec(model)
    folder = export(tmp_path / "e", spec)
    for _ in range(2):
        name = write_exported(spec, folder, repository, cpu_encoder=True)[0]
    assert (repository / name / "1/encoder_cpu_float32.onnx").is_file() == is_made
    assert asked == [folder / "encoder.onnx"] * is_made
