"""Fixtures of the core's tests."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import suppress

import pytest


@pytest.fixture(scope="session", autouse=True)
def whole_imagecodecs() -> None:
    """Loads all of imagecodecs, if it is installed.

    It loads each codec at its first use, and a codec that cannot be loaded then stays away for good. A test that hides
    the package must not be the first one to use a codec.
    """
    with suppress(ImportError):
        package = importlib.import_module("imagecodecs")
        for module in pkgutil.iter_modules(package.__path__):
            if module.name == "__main__":  # a program: it would read this one's command line, and end it
                continue
            with suppress(ImportError):
                importlib.import_module(f"imagecodecs.{module.name}")
