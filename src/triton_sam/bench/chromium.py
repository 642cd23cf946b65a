"""A Chromium without a window, for measuring and testing the web page. Needs Playwright: the extra ``dev``."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from triton_sam.errors import SetupError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: As scripts/install_browser.sh looks for them, after $CHROMIUM.
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Nothing of it goes anywhere by itself: what is seen on the network is the page's.
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str | None:
    """The path of a Chromium that runs. Nothing is installed here: that is scripts/install_browser.sh."""
    for name in (os.environ.get("CHROMIUM", ""), *_NAMES):
        path = shutil.which(name) if name else None
        if path and _works(path):
            return path
    return None


def _works(path: str) -> bool:
    """Ubuntu has a ``chromium-browser`` that only says how to install one."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own, of which nothing is left afterwards; SetupError where there can be none.

    While it is open this thread has a running event loop, and ``asyncio.run`` raises here: Playwright's synchronous
    interface keeps its loop suspended in a greenlet.
    """
    path = find_chromium()
    if path is None:
        raise SetupError("no Chromium here: scripts/install_browser.sh installs one, CHROMIUM=/path names one")
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise SetupError("Playwright is not installed: pip install 'triton-sam[dev]'") from None
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        except Error as error:
            raise SetupError(f"{path} does not start: {error.message.splitlines()[0]}") from None
        try:
            yield browser
        finally:
            browser.close()
