"""A model repository that commit ebd881f wrote, served by this code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analytic import assert_mask, fresh_picture, png, write_graphs
from tests.old_repository import contents, copy_old_repository
from triton_sam import SAM2TritonClient
from triton_sam.models.specs import ModelSpec
from triton_sam.server.selection import prepare
from triton_sam.serving import Ports, ServingOptions, serving
from triton_sam.settings import Settings

pytestmark = pytest.mark.triton


@pytest.mark.usefixtures("embedded_server")
def test_an_old_repository_is_served_unchanged(spec: ModelSpec, tmp_path: Path) -> None:
    """Below TRITON_SAM_HOME, where folders of another version would be rewritten; with the raw pair."""
    settings = Settings(home=tmp_path / "home")
    settings.home.mkdir()
    repository = copy_old_repository("analytic", settings.repository, *write_graphs(tmp_path / "graphs"))
    before = contents(repository)
    models = prepare([], settings, None)
    assert models.segmenters == {"sam2": spec}
    options = ServingOptions(
        models.repository, models.segmenters, settings, ports=Ports(0, 0, 0, 0), raw=True, with_service=False
    )
    picture = fresh_picture(7)
    with serving(options) as running, SAM2TritonClient(running.urls["HTTP"]) as client:
        assert running.supervisor.status["versions"] == {"sam2": "1", "sam2_encoder": "1", "sam2_decoder": "1"}
        client.set_image(png(picture))
        found = client.segment([[20.0, 30.0]], [1])
        assert_mask(found.masks.masks[0], picture, points=[[20.0, 30.0]], labels=[1])
    assert contents(repository) == before
