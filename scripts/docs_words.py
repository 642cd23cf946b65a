"""Prints the hand-written words of the documentation, by page. `--json` prints them for a machine."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_GENERATED = re.compile(r"<!-- generated: \w+ -->\n.*?<!-- end -->\n?", re.DOTALL)
_WORD = re.compile(r"\S*\w\S*")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def words(text: str) -> int:
    """Those of a page, with its code, without its generated parts. The marks of tables, lists and headings are none."""
    return len(_WORD.findall(_COMMENT.sub("", _GENERATED.sub("", text))))


def words_by_page() -> dict[str, int]:
    """Every page of docs/ and the read-me file."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    return {page.relative_to(ROOT).as_posix(): words(page.read_text()) for page in pages}


def main() -> None:
    counted = words_by_page()
    if "--json" in sys.argv[1:]:
        sys.stdout.write(json.dumps(counted, indent=1) + "\n")
        return
    for page, count in counted.items():
        sys.stdout.write(f"{count:6}  {page}\n")
    sys.stdout.write(f"{sum(counted.values()):6}  in all\n")


if __name__ == "__main__":
    main()
