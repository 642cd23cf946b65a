"""A site without internet (docs/guides/air_gapped.md): carried weights, a server and a mask, with loopback alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from triton_sam.models.specs import ModelSpec
from triton_sam.models.weights import WeightStore

pytestmark = [pytest.mark.triton, pytest.mark.part("deploy")]
SPOON = (365, 290)


@pytest.fixture
def no_network() -> list[str]:
    """What a command must begin with to see loopback alone."""
    words = ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed: it is in Debian's package util-linux")
    if subprocess.run([*words, "true"], capture_output=True, check=False, timeout=30).returncode:
        pytest.skip("network namespaces may not be made here: run it as root, or allow user namespaces")
    return words


def test_a_mask_without_any_network(
    no_network: list[str],
    store: WeightStore,
    real_spec: ModelSpec,
    embedded_server: None,
    photographs: Path,
    tmp_path: Path,
) -> None:
    blobs = tmp_path / "home" / "blobs"
    blobs.mkdir(parents=True)
    for file in real_spec.files:
        shutil.copy(store.path(file), blobs)
    environment = os.environ | {
        "TRITON_SAM_HOME": str(blobs.parent),
        "TRITON_SAM_CPU_ENCODER": "0",  # making it takes long, and needs no network either
        "TRITON_SAM_FAST_DECODER": "0",
        "HF_HUB_OFFLINE": "1",
    }
    script = Path(__file__).with_name("serve_without_network.py")
    done = subprocess.run(
        [*no_network, sys.executable, str(script), str(photographs / "coffee.png"), *map(str, SPOON)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["interfaces"] == ["lo"]
    assert told["reachable"] is False
    assert told["model"] == real_spec.id
    assert told["score"] > 0.9
