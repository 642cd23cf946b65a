from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import triton_sam

HEAVY = ("tritonclient", "onnxruntime", "cv2", "torch", "fastapi", "skimage")


def imported_after(statement: str) -> set[str]:
    """Top-level packages in a fresh Python after ``statement``."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("name", triton_sam.__all__)
def test_every_public_name_is_there(name: str) -> None:
    found = getattr(triton_sam, name)
    if name != "__version__":
        assert found.__name__ == name


def test_every_lazy_name_is_public() -> None:
    assert set(triton_sam._HOMES) | {"__version__"} == set(triton_sam.__all__)


def test_star_import() -> None:
    scope: dict[str, object] = {}
    exec("from triton_sam import *", scope)
    assert set(triton_sam.__all__) <= set(scope)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="'triton_sam' has no attribute 'SAM9'"):
        _ = triton_sam.SAM9


def test_the_package_itself_imports_nothing_heavy() -> None:
    assert not imported_after("import triton_sam") & {*HEAVY, "numpy", "PIL", "pydantic"}


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("from triton_sam.backend import cache", set()),
        ("from triton_sam.backend import replies, scheduler", set()),
        ("from triton_sam import MaskSet", set()),
        ("from triton_sam.service import app", {"fastapi"}),
        ("from triton_sam import SAM2TritonClient", set()),
        ("from triton_sam.engines import onnx", {"onnxruntime"}),
        ("from triton_sam import cli", set()),
    ],
)
def test_who_imports_what(statement: str, allowed: set[str]) -> None:
    assert set(HEAVY) & imported_after(statement) <= allowed


def test_the_client_works_without_the_server_packages() -> None:
    """A light installation has neither onnxruntime nor OpenCV."""
    hide = "sys.modules.update(dict.fromkeys(('onnxruntime', 'cv2', 'fastapi', 'pytriton', 'skimage', 'torch')))"
    code = (
        f"{hide}\nfrom triton_sam import SAM2TritonClient\n"
        "SAM2TritonClient('localhost:1').close(); SAM2TritonClient('grpc://localhost:1').close()"
    )
    assert "tritonclient" in imported_after(code)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("triton_sam.client", ("SAM2TritonClient", "Segmentation")),
        ("triton_sam.speculative", ("SpeculativeSAM2Client", "queue_multiple_requests", "wait_for_latest_result")),
        ("triton_sam.concepts", ("ConceptPredictor", "ConceptSegmentation", "FoundConcept")),
        ("triton_sam.vlm", ("AsyncTritonVLMClient", "TritonVLMClient", "Answer", "Entity")),
        ("triton_sam.masks", ("MaskSet", "decode", "encode", "overlay", "polygons", "png")),
        ("triton_sam.errors", ("TritonSamError", "InvalidInput")),
        ("triton_sam.demo", ("sample_photograph",)),
        ("triton_sam.cli", ("main",)),
    ],
)
def test_modules_that_users_import(module: str, names: tuple[str, ...]) -> None:
    """They stay where they are, wherever the code lives."""
    found = importlib.import_module(module)
    assert [name for name in names if not hasattr(found, name)] == []
