"""A browser for the tests of the web page: what it needs is in browser.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from testkit.page_traffic import Traffic
from tests.e2e.ask_helpers import Canned
from tests.e2e.browser import OpenPage, PageLog, axe_source, browser_or_skip, new_context
from tests.e2e.page_helpers import Screen
from triton_sam.serving import RunningServer
from triton_sam.settings import get_settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module, and not for the session: while it is open, ``asyncio.run`` raises in this thread."""
    with browser_or_skip() as browser:
        yield browser


@pytest.fixture
def page_log() -> PageLog:
    """What the pages of this test complain of; ``page_log.expect("regex")`` for what they may."""
    return PageLog()


@pytest.fixture
def _traffic() -> dict[Page, Traffic]:
    return {}


@pytest.fixture
def traffic(_traffic: dict[Page, Traffic]) -> Callable[[Page], Traffic]:
    """What a page of ``open_page`` asks of the service, from its first request on."""
    return _traffic.__getitem__


@pytest.fixture
def open_page(browser: Browser, page_log: PageLog, _traffic: dict[Page, Traffic]) -> Iterator[OpenPage]:
    """Opens pages, each in an empty profile; fails the test in the end if one of them complained unexpectedly.

    A test names the fixture of its server before this one: fixtures end in reverse, and a page whose server is gone
    complains.
    """
    contexts: list[BrowserContext] = []
    with contextlib.ExitStack() as profiles:

        def open_page(
            url: str,
            *,
            width: int = 1280,
            height: int = 800,
            touch: bool = False,
            dark: bool = False,
            scale: float = 1,
        ) -> Page:
            context = new_context(browser, width=width, height=height, touch=touch, dark=dark, scale=scale)
            profiles.callback(context.close)
            page_log.listen(context)
            contexts.append(context)
            page = context.new_page()
            _traffic[page] = Traffic(page)
            page.goto(url)
            return page

        yield open_page
        # Before the profiles close: what is under way then fails, and is no complaint.
        for context in contexts:
            page_log.flush(context)
        page_log.check()


@pytest.fixture(scope="session")
def axe() -> str:
    """The text of axe-core, for ``serious_findings(page, axe)``."""
    return axe_source(get_settings().home)


# -- asking: see ask_helpers.py ------------------------------------------------------------------------------------


@pytest.fixture
def canned() -> Canned:
    return Canned()


@pytest.fixture
def open_screen(server: RunningServer, open_page: OpenPage, canned: Canned) -> Callable[..., Screen]:
    """The coffee sample, encoded, with the panel's other side to be seen."""

    def opened(**options: Any) -> Screen:
        page = open_page("about:blank", **options)
        canned.take_over(page)
        page.goto(server.urls["service"])
        screen = Screen(page, server.urls["service"])
        screen.open_sample()
        if options.get("touch"):
            page.locator("#show-panel").tap()
        page.get_by_role("tab", name="Ask").click()
        return screen

    return opened
