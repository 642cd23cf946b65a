"""Commands in error messages that do no harm when they are followed literally."""

from __future__ import annotations

import numpy as np


def pip_install(package: str) -> str:
    """The command that installs a package and leaves numpy's major version alone.

    The embedded server works with numpy 1 only, and new releases of most packages would replace it.
    """
    keep = " 'numpy<2'" if np.__version__.startswith("1.") else ""
    return f"`pip install {package}{keep}`"
