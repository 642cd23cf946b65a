"""The pages of the documentation as tests read them: hand-written text, code blocks, anchors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]

_GENERATED = re.compile(r"<!-- generated: \w+ -->\n.*?<!-- end -->\n?", re.DOTALL)
_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>```+)(?P<language>[\w-]*)[^\n]*$")
_NOT_RUN = re.compile(r"^ *<!-- not run: (?P<reason>.+) -->$")


@dataclass(frozen=True)
class Fence:
    """A block of code.

    Attributes:
        line: of its first line of code, from 1 on.
        not_run: why no test runs it; None if one does.
        number: of the fence within its page, from 0 on.
    """

    page: str
    number: int
    line: int
    language: str
    code: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    """``docs/guides/batch.md``."""
    return page.relative_to(ROOT).as_posix()


def hand_written(text: str) -> str:
    """A page without its generated parts."""
    return _GENERATED.sub("", text)


def fences(page: Path) -> list[Fence]:
    """The blocks of code outside of generated parts, whose line numbers are those of the whole page."""
    found: list[Fence] = []
    lines = page.read_text().splitlines()
    generated, opened, before = False, None, ""
    code: list[str] = []
    for number, line in enumerate(lines, 1):
        if opened is not None:
            match, reason, start = opened
            if line.strip() == match["marks"]:
                indent = len(match["indent"])
                text = "".join(f"{one[indent:]}\n" for one in code)
                if not generated:
                    found.append(Fence(name_of(page), len(found), start, match["language"], text, reason))
                opened, code = None, []
            else:
                code.append(line)
        elif match := _FENCE.match(line):
            marked = _NOT_RUN.match(before)
            opened = (match, marked["reason"] if marked else None, number + 1)
        elif line.startswith("<!-- generated:"):
            generated = True
        elif line.startswith("<!-- end -->"):
            generated = False
        before = line
    assert opened is None, f"{name_of(page)}: a block of code is not closed"
    return found


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^( *)(```+)[^\n]*\n.*?^ *\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that MkDocs gives to a page's headings."""
    known: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(text), re.MULTILINE):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        plain = re.sub(r"[^\w\s-]", "", plain).strip().lower()
        slug = base = re.sub(r"[-\s]+", "-", plain)
        count = 0
        while slug in known:
            count += 1
            slug = f"{base}_{count}"
        known.add(slug)
    return known
