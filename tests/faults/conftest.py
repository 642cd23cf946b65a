"""Faults meet what users are served."""

from __future__ import annotations

from tests.for_cpus import repository, server, start_server  # noqa: F401
