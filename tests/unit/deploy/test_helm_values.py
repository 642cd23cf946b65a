"""What may be set: the schema takes the defaults and the examples, and wrong values are refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from tests.unit.deploy.helm_render import CHART, EXAMPLES, helm
from triton_sam.settings import Settings

pytestmark = pytest.mark.part("deploy")

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("values", [DEFAULTS, *(yaml.safe_load(path.read_text()) for path in EXAMPLES.values())])
def test_the_schema_takes_the_defaults_and_the_examples(values: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(values)


def test_every_default_is_described() -> None:
    assert set(SCHEMA["properties"]) - {"global"} == set(DEFAULTS)
    for name, part in SCHEMA["properties"].items():
        if part.get("additionalProperties") is False:
            assert set(part["properties"]) == set(DEFAULTS[name]), name


def test_settings_are_those_of_the_program() -> None:
    """`python scripts/generate_docs.py` writes them anew."""
    named = set(SCHEMA["properties"]["settings"]["propertyNames"]["enum"])
    fields = {name.upper() for name in Settings.model_fields}
    assert named <= fields
    assert not {"TOKEN", "HOME"} & named
    for values in (DEFAULTS, *(yaml.safe_load(path.read_text()) for path in EXAMPLES.values())):
        given = {name.lower(): value for name, value in values.get("settings", {}).items()}
        Settings(**given)


def test_the_way_to_the_collector_is_the_exporters() -> None:
    """OTLP over HTTP, not over gRPC."""
    exporter = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    (rule,) = yaml.safe_load(EXAMPLES["everything"].read_text())["networkPolicy"]["extraEgress"]
    assert [port["port"] for port in rule["ports"]] == [urlsplit(exporter.DEFAULT_ENDPOINT).port]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "set auth.existingSecret, auth.token or auth.tokensSecret"),
        (["--set", "auth.tokensSecret=callers,metrics.serviceMonitor.enabled=true"], "Prometheus would be refused"),
        (["--set", "auth.anonymous=true,models.segmenters=null"], "there is nothing to serve"),
        (["--set", "auth.anonymous=true,ingress.enabled=true"], "set ingress.hosts"),
        (["--set-string", "auth.anonymous=true"], "auth.anonymous"),
        (["--set", "auth.anonymous=true,replica=2"], "replica"),
        (["--set", "auth.anonymous=true", "--set-string", "settings.CACHE_BYTE=1"], "CACHE_BYTES"),
        (["--set", "auth.anonymous=true", "--set-string", "settings.TOKEN=secret"], "TOKEN"),
        (["--set", "auth.anonymous=true", "--set-string", "settings.TLS_KEY=/tls.key"], "TLS_KEY"),
        (["--set", "auth.anonymous=true,models.segmenters={sam2}"], "models.segmenters"),
        (["--set", "auth.anonymous=true,storage.accessModes={ReadWriteMany}"], "storage.accessModes"),
        (["--set", "auth.anonymous=true,sharedRepository.path=../other"], "sharedRepository.path"),
        (["--set", "auth.anonymous=true,gpus=0"], "gpus"),
        (["--set", "auth.anonymous=true,gpus=2,gpu.enabled=false"], "gpu.enabled is false"),
        (["--set", "auth.anonymous=true,gpus=2,models.engine=onnx"], "uses one GPU of 2"),
        (["--set", "auth.anonymous=true,gpus=2,resources.requests.cpu=0.5"], "resources.requests.cpu is 0.5"),
        (["--set", "auth.anonymous=true", "--kube-version", "1.26.0"], "kubeVersion"),
    ],
)
def test_what_cannot_work_is_refused_with_a_reason(words: list[str], told: str, tmp_path: Path) -> None:
    done = helm("template", "sam", str(CHART), *words, home=tmp_path)
    assert done.returncode != 0
    assert told in done.stderr


def test_nobody_is_asked_only_where_that_is_said(tmp_path: Path) -> None:
    done = helm("template", "sam", str(CHART), "--set", "auth.anonymous=true", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "TRITON_SAM_TOKEN" not in done.stdout
