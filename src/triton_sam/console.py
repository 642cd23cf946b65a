"""The consoles of the command line: results go to ``out`` (stdout), everything else to ``err`` (stderr)."""

from __future__ import annotations

import logging

from rich.console import Console

#: Text is printed unchanged: paths, addresses and `triton-sam[server]` are not markup.
out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def log_handler() -> logging.Handler:
    """Log lines on ``err``."""
    from rich.logging import RichHandler

    return RichHandler(console=err, show_path=False, show_time=False)
