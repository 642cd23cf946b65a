"""Pages: generated parts, links, the site's navigation, what Markdown differs in, and their length."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.doc_pages import DOCS, PAGES, ROOT, anchors, hand_written, name_of, prose

#: Hand-written words, code included.
MOST_WORDS = 18_000
MOST_WORDS_OF_A_GUIDE = 800
MOST_WORDS_OF_THE_READ_ME = 1_200
NAMES = [name_of(page) for page in PAGES]
#: Files of the repository that link to pages.
OTHERS = [name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md") if (ROOT / name).exists()]
OTHERS += [name_of(path) for folder in ("training", "benchmarks") for path in (ROOT / folder).glob("**/README.md")]
_LINK = re.compile(r"!?\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\]\(([^)\s]+)\)")


@cache
def words() -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "scripts/docs_words.py", "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


@cache
def anchors_of(page: Path) -> set[str]:
    return anchors(page.read_text())


def test_generated_parts_have_not_drifted() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run `make docs`: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("name", [*NAMES, *OTHERS])
def test_links_lead_somewhere(name: str) -> None:
    """Files, and headings of pages."""
    page = ROOT / name
    wrong = []
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page.read_text()))):
        address, _, anchor = link.partition("#")
        if ":" in address:
            continue
        target = page.parent / address if address else page
        if not target.exists():
            wrong.append(f"{link}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target.resolve()):
            wrong.append(f"{link}: the page has no such heading")
    assert not wrong


def navigation() -> list[str]:
    """The pages of mkdocs.yml's navigation, in order."""

    def pages(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for child in (entry.values() if isinstance(entry, dict) else entry) for page in pages(child)]

    return pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(navigation()) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.glob("**/*.md"))


def test_the_site_needs_no_other_host() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert site["theme"]["font"] is False
    assert "offline" in site["plugins"]
    assert all((DOCS / path).exists() for path in [*site["extra"]["polyfills"], *site["extra_css"]])
    assert site["strict"]


@pytest.mark.parametrize("name", NAMES)
def test_lists_are_read_alike_by_every_markdown(name: str) -> None:
    """Python-Markdown wants an empty line before a list, and four blanks before what belongs to its items."""
    wrong = []
    before = ""
    # Blocks of code keep their first line, so that a list may follow them.
    for line in re.sub(r"^( *)(```+)[^\n]*\n.*?^ *\2 *$", r"\1```", (ROOT / name).read_text(), flags=re.M | re.S).split(
        "\n"
    ):
        item = re.match(r"^( *)(?:[-*]|\d+\.) +\S", line)
        if item and before.strip() and not re.match(r"^ *(?:[-*]|\d+\.) |^ +|^#|^<!--", before):
            wrong.append(f"no empty line before {line!r}")
        if (item or line.strip() == "```") and len(line[: len(line) - len(line.lstrip())]) % 4:
            wrong.append(f"indented by other than 4 blanks: {line!r}")
        before = line
    assert not wrong


def test_guides_are_short() -> None:
    long = {
        name: count
        for name, count in words().items()
        if name.startswith(("docs/guides/", "docs/start/")) and count > MOST_WORDS_OF_A_GUIDE
    }
    assert not long
    assert words()["README.md"] < MOST_WORDS_OF_THE_READ_ME


def test_nobody_has_to_read_a_book() -> None:
    assert sum(words().values()) <= MOST_WORDS, "python scripts/docs_words.py prints the words of each page"


def test_words_are_counted_without_what_is_generated() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import docs_words
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    page = "# Two words\n\n<!-- generated: x -->\nnot these\n<!-- end -->\n\n<!-- not run: no -->\n```sh\nls\n```\n"
    assert docs_words.words(page) == 4  # the heading's, the fence's language and the command
    assert "not these" not in hand_written(page)


def test_pages_are_linked_from_their_own_folder() -> None:
    """An absolute link works neither in the repository nor in a site that is opened from a folder."""
    for page in PAGES:
        for link in _LINK.findall(prose(page.read_text())):
            assert not posixpath.isabs(link), f"{name_of(page)}: {link}"
