"""No line of ours runs what a file or a stranger says: no pickle, no eval, no shell, no unchecked certificate."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in ("src", "scripts", "training") for path in (ROOT / folder).rglob("*.py"))
_UNPICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
_CALLS = {"eval", "exec", "__import__"}
_METHODS = {("yaml", "load"), ("yaml", "unsafe_load"), ("os", "system"), ("os", "popen"), ("tempfile", "mktemp")}
_OPTIONS = {("shell", True), ("verify", False), ("allow_pickle", True), ("trust_remote_code", True)}

#: (file, what) -> why it may stand there.
ALLOWED = {
    ("src/triton_sam/export/checkpoint.py", "import pickle"): "names the error of torch.load(weights_only=True) only",
    ("src/triton_sam/backend/workers/channel.py", "import marshal"): (
        "messages between processes of one server, whose user each end asks the kernel for"
    ),
    (
        "scripts/pack_device.py",
        "extractall without a filter",
    ): "zip files have none; all stays inside",
    ("src/triton_sam/engines/vlm/remote_code.py", "trust_remote_code=True"): (
        "code of one pinned commit, from a local folder whose files were compared with the Hub's checksums"
    ),
}


def unsafe(tree: ast.AST) -> Iterator[str]:
    """What stands in a file that needs a reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {name.name}" for name in node.names if name.name.partition(".")[0] in _UNPICKLING)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _UNPICKLING:
            yield f"import {node.module}"
        elif isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.Attribute) and node.attr in ("CERT_NONE", "_create_unverified_context"):
            yield node.attr


def _of_call(node: ast.Call) -> Iterator[str]:
    options = {keyword.arg: keyword.value.value for keyword in node.keywords if isinstance(keyword.value, ast.Constant)}
    yield from (f"{name}={value}" for name, value in options.items() if (name, value) in _OPTIONS)
    if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        yield node.func.id
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        called = (node.func.value.id, node.func.attr)
        if called in _METHODS:
            yield ".".join(called)
        if called == ("torch", "load") and options.get("weights_only") is not True:
            yield "torch.load without weights_only"
    if isinstance(node.func, ast.Attribute) and node.func.attr == "extractall" and "filter" not in options:
        yield "extractall without a filter"


def test_nothing_unsafe_stands_anywhere_without_a_reason() -> None:
    assert len(FILES) > 100
    found = {
        (path.relative_to(ROOT).as_posix(), what) for path in FILES for what in unsafe(ast.parse(path.read_bytes()))
    }
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import pickle", "import pickle"),
        ("from pickle import loads", "import pickle"),
        ("import joblib.x as j", "import joblib.x"),
        ("torch.load(path)", "torch.load without weights_only"),
        ("torch.load(path, weights_only=False)", "torch.load without weights_only"),
        ("torch.load(path, weights_only=flag)", "torch.load without weights_only"),
        ("eval(text)", "eval"),
        ("exec(text)", "exec"),
        ("yaml.load(text)", "yaml.load"),
        ("subprocess.run(text, shell=True)", "shell=True"),
        ("os.system(text)", "os.system"),
        ("np.load(path, allow_pickle=True)", "allow_pickle=True"),
        ("context.verify_mode = ssl.CERT_NONE", "CERT_NONE"),
        ("httpx.get(url, verify=False)", "verify=False"),
        ("AutoModel.from_pretrained(name, trust_remote_code=True)", "trust_remote_code=True"),
        ("archive.extractall(folder)", "extractall without a filter"),
    ],
)
def test_the_search_finds(line: str, what: str) -> None:
    assert list(unsafe(ast.parse(line))) == [what]


def test_and_leaves_alone() -> None:
    harmless = "torch.load(p, weights_only=True)\nnetwork.eval()\nquestion.exec(decoupled=True)\nsubprocess.run([a])"
    assert list(unsafe(ast.parse(harmless))) == []
