"""Hypothesis profiles: few and always the same examples for every commit, many for `make test-all`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

#: Environment variable with the name of the profile; the default is the one for every commit.
VARIABLE = "HYPOTHESIS_PROFILE"


def load() -> None:
    """Registers both profiles and loads the one that ``HYPOTHESIS_PROFILE`` names.

    Call it before test modules are imported: ``@settings`` and ``@given`` read the profile then. Neither has a deadline
    or a health check for slow drawing, because the machine may be busy.
    """
    settings.register_profile(
        "commit",
        max_examples=25,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile(
        "full", max_examples=500, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile(os.environ.get(VARIABLE) or "commit")
