"""``bench users`` on the real server: that what people do adds up, never how quick it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from triton_sam.bench import results
from triton_sam.bench.pictures import Pictures
from triton_sam.bench.users import running
from triton_sam.bench.users.generator import UsersLoad, let_work
from triton_sam.bench.users.schedule import Behaviour
from triton_sam.bench.users.worker import SERVICE, TRITON
from triton_sam.cli.bench import bench_app
from triton_sam.models.catalog import DEFAULT_MODEL
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.timeout(120)]
#: Three people open three images in these three seconds.
LOAD = {"users": 3, "seconds": 3.0, "processes": 2, "behaviour": Behaviour(image_seconds=3.0)}


def url_of(server: RunningServer, through: str) -> str:
    return server.urls["service" if through == SERVICE else "HTTP"]


@pytest.mark.parametrize("through", [TRITON, SERVICE])
def test_every_action_ends_once(server: RunningServer, through: str) -> None:
    address = running.parse_url(url_of(server, through), through)
    name = running.find_model(address, through, DEFAULT_MODEL)
    generated = let_work(UsersLoad(through=through, **LOAD), address, name, Pictures(side=256))
    tally = generated.tally
    for actions in (tally.hovers, tally.last_hovers, tally.clicks, tally.images):
        assert actions.made == actions.answered + actions.superseded + actions.errors.total() > 0
    assert tally.errors == {}, tally.messages
    assert tally.clicks.made == tally.clicks.answered
    assert tally.images.made == tally.images.answered == 3
    assert 0 < tally.unsent + tally.hovers.answered <= tally.hovers.made


@pytest.mark.part("bench")
def test_the_command_on_a_server_that_runs(server: RunningServer, tmp_path: Path) -> None:
    words = [
        "users",
        "--users",
        "2",
        "--seconds",
        "2",
        "--through",
        "triton",
        "--side",
        "256",
        "--model",
        DEFAULT_MODEL,
    ]
    done = CliRunner().invoke(bench_app, [*words, "--url", server.urls["HTTP"], "--output", str(tmp_path / "out.json")])
    assert done.exit_code == 0, done.output
    result = results.read(tmp_path / "out.json")
    assert result.name == "users"
    assert result.about["tritonserver"].startswith("2.")
    assert {"newest hover, p95", "click, p50", "share of hovers computed", "errors"} <= {f.name for f in result.figures}
