"""The site of the documentation: built strictly, opened in Chromium from its folder, without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.doc_pages import ROOT
from tests.e2e.browser import OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.part("docs"), pytest.mark.timeout(600)]

#: A page of each kind.
SHOWN = ("index", "start/laptop", "guides/batch", "reference/http", "reference/python", "how/results", "adr/index")
#: Tags that a browser loads something for -> the attribute with its address.
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "video": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it: a broken link or anchor is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class _Resources(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given.get(LOADED.get(tag, "")) or "")


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        parser = _Resources()
        parser.feed(page.read_text())
        outside = [address for address in parser.found if re.match(r"(https?:)?//", address)]
        assert not outside, page.relative_to(site)
        assert "fonts.g" not in page.read_text()
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text()), style.name


def test_what_is_generated_is_a_table_and_no_text(site: Path) -> None:
    """Comments around generated parts may not swallow the rows beside them."""
    for name, rows in (("reference/settings", 60), ("reference/errors", 20), ("reference/cli", 100)):
        html = (site / f"{name}.html").read_text()
        assert html.count("<tr>") > rows, name
        assert "<td>&lt;!--" not in html


def open_offline(open_page: OpenPage, site: Path, name: str, **options: Any) -> Page:
    """A page from its folder. Requests for anything else are noted, and end the test."""
    page = open_page("about:blank", **options)
    outside: list[str] = []
    root = site.as_uri()

    def see(request: Any) -> None:
        if not request.url.startswith((root, "data:", "blob:", "about:")):
            outside.append(request.url)

    page.on("request", see)
    page.goto(f"{root}/{name}.html")
    page.wait_for_load_state("networkidle")
    assert not outside
    return page


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages(site: Path, open_page: OpenPage, width: int, dark: bool) -> None:
    for name in SHOWN:
        page = open_offline(open_page, site, name, width=width, height=800, dark=dark)
        assert page.locator("h1").is_visible(), name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
        scheme = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
        assert scheme == ("slate" if dark else "default")
        broken = page.evaluate(
            "Promise.all([...document.images].map(i => i.decode().then(() => '', () => i.src)))"
            ".then(all => all.filter(Boolean))"
        )
        assert not broken, name


def test_search_works_from_a_folder(site: Path, open_page: OpenPage) -> None:
    page = open_offline(open_page, site, "index")
    page.locator("[data-md-component=search-query]").click()
    page.keyboard.type("latest_wins", delay=20)
    found = page.locator(".md-search-result__link")
    found.first.wait_for(timeout=20_000)
    assert any("reference/" in (link.get_attribute("href") or "") for link in found.all())
    found.first.click()
    page.wait_for_url(re.compile(r"/(reference|guides)/"))


def test_files_of_the_repository_are_pages(site: Path, open_page: OpenPage) -> None:
    """Links that leave docs/ lead to the file's text in the site."""
    pages = list((site / "repository").rglob("*.html"))
    assert pages
    text = "".join(path.read_text() for path in site.rglob("*.html"))
    assert 'href="../../SECURITY.md' not in text
    open_offline(open_page, site, pages[0].relative_to(site).with_suffix("").as_posix())


def test_a_phone_has_the_menu(site: Path, open_page: OpenPage) -> None:
    page = open_offline(open_page, site, "guides/batch", width=390, height=800, touch=True)
    menu = page.locator(".md-nav--primary").first
    assert not menu.evaluate("element => element.getBoundingClientRect().right > 0")
    page.locator(".md-header__button[for=__drawer]").tap()
    page.wait_for_function("document.querySelector('.md-sidebar--primary').getBoundingClientRect().left >= 0")
