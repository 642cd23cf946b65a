"""A headless Chromium, to test and measure the web page. Needs Playwright: the extra ``dev``."""

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

#: The names that scripts/install_browser.sh tries, after $CHROMIUM.
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Chromium sends nothing of its own: all traffic on the network is the page's.
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
    """The path of a Chromium that runs, or None. It installs nothing: scripts/install_browser.sh does."""
    for name in (os.environ.get("CHROMIUM", ""), *_NAMES):
        path = shutil.which(name) if name else None
        if path and _works(path):
            return path
    return None


def _works(path: str) -> bool:
    """Whether it starts: Ubuntu has a ``chromium-browser`` that only explains how to install one."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Starts a browser, and closes it at the end. Raises SetupError if none can be started.

    While it is open, ``asyncio.run`` raises in this thread: Playwright's synchronous interface keeps an event loop
    suspended in a greenlet.
    """
    path = find_chromium()
    if path is None:
        raise SetupError("no Chromium found: run scripts/install_browser.sh, or set CHROMIUM=/path/to/chromium")
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
