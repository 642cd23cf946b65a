"""Blocks of code of the documentation: each parses, names commands and options that exist, and is run by a test."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
from typing import Any

import pytest
import typer
import typer.main
import yaml

from tests.doc_pages import PAGES, ROOT, Fence, fences, hand_written, name_of, prose
from triton_sam.cli.app import app

FENCES = [fence for page in PAGES for fence in fences(page)]
LANGUAGES = {"bash", "python", "js", "text", "json", "yaml", "dockerfile", "ini", "nginx"}
#: Page -> the test that runs its blocks of bash and Python.
RUN_BY = {
    "README.md": "tests/e2e/test_readme.py",
    "docs/start/laptop.md": "tests/e2e/test_readme.py",
    "docs/guides/annotation_team.md": "tests/e2e/test_documented_commands.py",
    "docs/guides/batch.md": "tests/e2e/test_task_guides.py",
    "docs/guides/batch_clusters.md": "tests/e2e/test_batch_guides.py",
    "docs/guides/batch_libraries.md": "tests/e2e/test_batch_guides.py",
    "docs/guides/everything.md": "tests/e2e/test_task_guides.py",
    "docs/guides/fails.md": "tests/integration/test_operator_guides.py",
    "docs/guides/other_language.md": "tests/e2e/test_client_guides.py",
    "docs/guides/questions.md": "tests/e2e/test_task_guides.py",
    "docs/guides/slow.md": "tests/integration/test_operator_guides.py",
    "docs/guides/text.md": "tests/e2e/test_task_guides.py",
    "docs/guides/two_stage.md": "tests/e2e/test_client_guides.py",
    "docs/guides/video.md": "tests/e2e/test_task_guides.py",
}
#: Libraries of others that pages use, and that this environment need not have.
FOREIGN = {
    "dask_jobqueue", "fiftyone", "geopandas", "napari", "openai", "pandas", "ray", "supervision",
}  # fmt: skip
#: What begins another command.
_OPERATORS = {"|", "||", "&&", "&", ";", "(", ")", "|&"}
_ROOT_COMMAND: Any = typer.main.get_command(app)
#: Newer versions of typer have a click of their own.
UsageError: Any = typer.BadParameter.__mro__[1]


def of(*languages: str) -> list[Any]:
    return [pytest.param(fence, id=str(fence)) for fence in FENCES if fence.language in languages]


def test_languages() -> None:
    assert not [str(fence) for fence in FENCES if fence.language not in LANGUAGES], "say what is in the block"


@pytest.mark.parametrize("fence", of("bash"))
def test_bash(fence: Fence) -> None:
    done = subprocess.run(["bash", "-n"], input=fence.code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr


@pytest.mark.parametrize("fence", of("python"))
def test_python(fence: Fence) -> None:
    """It compiles, and what it imports is there."""
    for node in ast.walk(ast.parse(fence.code)):
        if isinstance(node, ast.Import):
            for name in node.names:
                _check_import(name.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            _check_import(node.module, *(name.name for name in node.names))


def _check_import(module: str, *names: str) -> None:
    top = module.partition(".")[0]
    if top in FOREIGN:
        return
    if top != "triton_sam":
        assert importlib.util.find_spec(top) is not None, f"{module} is not here: install it, or name it in FOREIGN"
        return
    found = importlib.import_module(module)
    assert not [name for name in names if not hasattr(found, name)]


@pytest.mark.parametrize("fence", of("json", "yaml"))
def test_data(fence: Fence) -> None:
    if fence.language == "json":
        json.loads(fence.code)
    else:
        list(yaml.safe_load_all(fence.code))


def commands(code: str) -> list[list[str]]:
    """The words of each ``triton-sam`` command in a block of bash."""
    # The text of a here-document is no command.
    code = re.sub(r"(<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n).*?^\s*\2$", r"\1", code, flags=re.MULTILINE | re.DOTALL)
    found: list[list[str]] = []
    for line in re.sub(r"\\\n", " ", code).splitlines():
        for whole in (line, *re.findall(r"\$\(([^()]*)\)", line)):
            lexer = shlex.shlex(whole, posix=True, punctuation_chars="|&;()<>")
            lexer.commenters = "#"
            lexer.whitespace_split = True
            try:
                words = list(lexer)
            except ValueError:  # a text of several lines
                words = whole.split()
            found += [command for command in _split(words) if command not in found]
    return found


def _split(words: list[str]) -> list[list[str]]:
    found: list[list[str]] = []
    current: list[str] | None = None
    for number, word in enumerate(words):
        before = words[number - 1] if number else ";"
        starts = before in _OPERATORS or "=" in before or before == "env"
        if (word == "triton-sam" and starts) or word.endswith("bin/triton-sam"):
            current = []
            found.append(current)
        elif word in _OPERATORS or set(word) <= set("<>"):
            current = None
        elif current is not None:
            current.append(word)
    return found


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that words name, and its own words."""
    command, words, path = _ROOT_COMMAND, [word for word in words if word != "--debug"], "triton-sam"
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            break
        if path == "triton-sam batch" and words[0] not in command.commands:
            words = ["run", *words]
        assert words[0] in command.commands, f"{path} has no command {words[0]!r}"
        command, words, path = command.commands[words[0]], words[1:], f"{path} {words[0]}"
    return command, words


def check_command(words: list[str]) -> None:
    """Raises click's error for a command or an option that does not exist, or for a value that is missing."""
    command, words = command_of(words)
    context = command.context_class(command)
    _, left, _ = command.make_parser(context).parse_args(args=list(words))
    assert not left, f"{command.name} takes no {left}"


@pytest.mark.parametrize("fence", of("bash"))
def test_options(fence: Fence) -> None:
    for words in commands(fence.code):
        check_command(words)


@pytest.mark.parametrize("name", [name_of(page) for page in PAGES])
def test_options_in_the_text(name: str) -> None:
    """Of `triton-sam ...` in a sentence. Its words may be placeholders; commands and options must exist."""
    for quoted in re.findall(r"`triton-sam ([^`\n]+)`", prose(hand_written((ROOT / name).read_text()))):
        command, words = command_of(quoted.replace("|", " ").split())
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {word.partition("=")[0].strip(",.)]") for word in words if re.match(r"^\[?--\w", word)}
        unknown = {word.lstrip("[") for word in given} - known - {"--help", "--debug"}
        assert not unknown, f"`triton-sam {quoted}`"


def test_every_block_is_run_by_a_test() -> None:
    pages = {fence.page for fence in FENCES if fence.language in ("bash", "python") and fence.not_run is None}
    assert pages == set(RUN_BY), "name the test that runs a page's blocks, or say before a block why none does"
    for page, test in RUN_BY.items():
        assert page.rpartition("/")[2] in (ROOT / test).read_text(), f"{test} does not read {page}"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("triton-sam serve --service-port 9090", [["serve", "--service-port", "9090"]]),
        ("A=1 triton-sam pull sam2:tiny && .venv/bin/triton-sam doctor  # looks", [["pull", "sam2:tiny"], ["doctor"]]),
        ("x=$(triton-sam models | head)", [["models"]]),
        ("triton-sam ask a.png \\\n  'what is it?' > out", [["ask", "a.png", "what is it?"]]),
        ("cat <<EOF > a\ntriton-sam nothing\nEOF\nls", []),
    ],
)
def test_commands_are_found(code: str, found: list[list[str]]) -> None:
    assert commands(code) == found


@pytest.mark.parametrize("words", [["nothing"], ["serve", "--nothing"], ["serve", "--service-port"]])
def test_wrong_commands_are_refused(words: list[str]) -> None:
    with pytest.raises((AssertionError, UsageError)):
        check_command(words)
