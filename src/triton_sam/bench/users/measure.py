"""``triton-sam bench users``: many people on a server that is started for it, or on one that runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.pictures import Pictures
from triton_sam.bench.results import Result
from triton_sam.bench.users import outcome, running
from triton_sam.bench.users.generator import Generated, UsersLoad, let_work
from triton_sam.bench.users.worker import SERVICE
from triton_sam.errors import SetupError
from triton_sam.installation import install_extra
from triton_sam.models.catalog import chosen_spec
from triton_sam.settings import get_settings

if TYPE_CHECKING:
    from triton_sam.bench.target import Target  # which needs tritonclient, and a running server does not

NAME = "users"


def measure_users(target: Target, load: UsersLoad) -> Result:
    """People on the server that was started for the benchmark."""
    result = target.result(NAME)
    urls = target.started_server("bench users").urls
    if load.through == SERVICE and "service" not in urls:
        raise SetupError(f"the service is not installed: {install_extra('service')}, or measure --through triton")
    url = urls["service" if load.through == SERVICE else "HTTP"]
    address = running.parse_url(url, load.through)
    _add(result, load, let_work(load, address, target.name, target.pictures, _token(load)))
    return result


def measure_running(url: str, model: str, image: Path | None, side: int, load: UsersLoad) -> Result:
    """People on a server that runs already; needs neither fastapi nor tritonclient.

    Args:
        model: a catalogue id, or a family for its default model.
        image, side: as in :class:`Pictures`.
    """
    spec = chosen_spec(model)
    address = running.parse_url(url, load.through)
    name = running.find_model(address, load.through, spec.id)
    pictures = Pictures(image, side)
    about = {"model": spec.id, "image": pictures.about, "server": url}
    version = running.triton_version(address)
    result = Result(NAME, about=about | ({"tritonserver": version} if version else {}))
    _add(result, load, let_work(load, address, name, pictures, _token(load)))
    return result


def _token(load: UsersLoad) -> str:
    """The settings' token, which only the service gets."""
    token = get_settings().token
    return token.get_secret_value() if token is not None and load.through == SERVICE else ""


def _add(result: Result, load: UsersLoad, generated: Generated) -> None:
    result.about["load"] = outcome.about(load)
    result.notes += outcome.notes(load, generated)
    result.figures += outcome.figures(load, generated)
    series = outcome.series(generated)
    result.series += series
    shares = np.linspace(0, 100, 201)
    curves = [Curve(each.name, [each.percentile(share) for share in shares], list(shares)) for each in series]
    title = f"{load.users} users at the same time through {load.through}: {result.about['model']}"
    result.charts.append(Chart(NAME, title, [Panel("share of the answers, %", "time to the answer, ms", curves)]))
