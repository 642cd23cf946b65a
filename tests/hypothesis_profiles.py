"""How many examples hypothesis tries: few and always the same for every commit, many for `make test-all`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

#: Names the profile; without it a run takes the one for every commit.
VARIABLE = "HYPOTHESIS_PROFILE"


def load() -> None:
    """Registers both profiles and takes the one that ``HYPOTHESIS_PROFILE`` names.

    To be called before test modules are imported: ``@settings`` and ``@given`` read the profile then. Neither has a
    deadline, because a busy machine is no fault, and neither complains that it draws slowly, for the same reason.
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
