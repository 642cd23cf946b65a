"""Files, classes and functions stay small enough to read; an exception has its reason beside it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES, CLASS_LINES, FUNCTION_LINES, PARAMETERS = 400, 250, 60, 8
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def lines_of(node: ast.ClassDef | _Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters_of(node: _Function) -> int:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def has_reason(node: _Function, lines: list[str]) -> bool:
    """A comment right above the function and its decorators that begins with what is exceeded."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return lines[first - 2].strip().startswith(("# Many parameters", "# Long"))


def too_large(path: Path) -> list[str]:
    text = path.read_text()
    lines = text.splitlines()
    found = [f"{len(lines)} lines"] if len(lines) > FILE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and lines_of(node) > CLASS_LINES:
            found.append(f"class {node.name}: {lines_of(node)} lines")
        if isinstance(node, _Function) and not has_reason(node, lines):
            if lines_of(node) > FUNCTION_LINES:
                found.append(f"{node.name}: {lines_of(node)} lines")
            if parameters_of(node) > PARAMETERS:
                found.append(f"{node.name}: {parameters_of(node)} parameters")
    return [f"{path.relative_to(ROOT)}: {what}" for what in found]


@pytest.mark.parametrize("folder", ["src", "benchmarks", "testkit", "scripts"])
def test_nothing_is_too_large(folder: str) -> None:
    assert [found for path in sources(folder) for found in too_large(path)] == []


def test_test_files_are_split_by_subject() -> None:
    long = [path for path in sources("tests", "training") if len(path.read_text().splitlines()) > FILE_LINES]
    long += [path for path in (ROOT / "tests" / "web").glob("*.js") if len(path.read_text().splitlines()) > FILE_LINES]
    assert long == []


def test_a_package_says_in_a_few_lines_what_it_is() -> None:
    """The root package lists the public names too."""
    packages = [path for path in sources("src") if path.name == "__init__.py" and path.parent.parent.name != "src"]
    assert [path for path in packages if len(path.read_text().splitlines()) > 15 or '"""' not in path.read_text()] == []
