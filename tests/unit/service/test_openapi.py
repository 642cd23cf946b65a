"""The document is right, and nothing that comes against it breaks the service."""

from __future__ import annotations

import contextlib
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis.checks import not_a_server_error
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.unit.service.helpers import Fake, ask
from tests.unit.service.video_helpers import video_fake
from triton_sam.service import schemas
from triton_sam.service.videos import video_schemas

#: Of each operation and mode; a commit has 8.
_EXAMPLES = min(settings.default.max_examples // 3, 100)  # type: ignore[union-attr]
_CONFIG = SchemathesisConfig(
    projects=ProjectsConfig(
        default=ProjectConfig(generation=GenerationConfig(max_examples=_EXAMPLES, deterministic=True, no_shrink=True))
    )
)
VIDEOS = "/v1/videos"
_OF_VIDEOS = ("", "/frames/{number}", "/masks", "/export", "/prompts", "/propagate", "/cancel", "/reset")
_OF_VIDEOS += ("/objects/{object_id}",)
_CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = ask("GET", "/openapi.json").json()
    return found


def try_one(cases: SearchStrategy[schemathesis.Case], checks: list[Any]) -> None:
    @given(case=cases)
    @settings(
        max_examples=_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def run(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=checks)

    run()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_whatever_comes(mode: schemathesis.GenerationMode) -> None:
    api = schemathesis.openapi.from_asgi("/openapi.json", Fake().app(), config=_CONFIG)
    tried = []
    for found in api.get_all_operations():
        operation = found.ok()
        # Without a Triton, 503 is the right answer of one route, and a server's error all the same.
        # As is 501 without a model that remembers.
        checks = _CHECKS[1:] if operation.path in ("/v2/metrics", VIDEOS) else _CHECKS

        with contextlib.suppress(Unsatisfiable):  # nothing can be wrong about a route without parameters
            try_one(operation.as_strategy(generation_mode=mode), checks)
            tried.append(operation.path)
    assert {"/v1/segment", "/v1/images", "/embedded_model", "/from_model", "/prediction"} <= set(tried)
    assert {"/v1/chat/completions", "/v1/everything", "/v1/ground"} <= set(tried)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_whatever_comes_as_a_video(mode: schemathesis.GenerationMode) -> None:
    api = schemathesis.openapi.from_asgi("/openapi.json", video_fake().app(), config=_CONFIG)
    try_one(api[VIDEOS]["POST"].as_strategy(generation_mode=mode), _CHECKS)


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(references(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(references(value) for value in node))
    return set()


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


def test_every_schema_is_one(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


def test_every_route_is_described(document: dict[str, Any]) -> None:
    operations = [(path, operation) for path, methods in document["paths"].items() for operation in methods.values()]
    assert {path for path, _ in operations} == {
        "/embedded_model",
        "/from_model",
        "/prediction",
        "/new_session_id",
        "/cancel_pending",
        "/v1/images",
        "/v1/segment",
        "/v1/everything",
        "/v1/ground",
        "/v1/preview",
        "/v1/describe",
        "/v1/planes",
        "/v1/limits",
        "/v1/chat/completions",
        "/v1/models",
        "/v1/models/{model}",
        VIDEOS,
        *(f"{VIDEOS}/{{video_id}}{path}" for path in _OF_VIDEOS),
        "/samples",
        "/samples/{name}",
        "/health",
        "/models",
        "/metrics",
        "/v2/models",
        "/v2/metrics",
    }
    for path, operation in operations:
        assert operation["summary"], path
        assert operation["tags"], path
        answers = operation["responses"]
        for status, answer in answers.items():
            if int(status) >= 400 and path != "/health":
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}, (path, status)
        assert {"401", "413", "429", "500", "504"} <= set(answers)
        assert {"200", "201", "204"} & set(answers)


def test_every_request_has_an_example_that_fits(document: dict[str, Any]) -> None:
    components = document["components"]
    for name in [*schemas.request_schemas(), *video_schemas.request_schemas(), "ChatCompletionRequest"]:
        if name == "ObjectRequest":
            continue
        examples = components["schemas"][name]["examples"]
        assert examples
        validator = jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": components})
        for example in examples:
            validator.validate(example)


def test_files_are_binary(document: dict[str, Any]) -> None:
    components = document["components"]["schemas"]
    for form, field in (
        ("ImageForm", "image"),
        ("PreviewForm", "image"),
        ("EmbeddedModelForm", "image"),
        ("FromModelForm", "model"),
    ):
        assert components[form]["properties"][field]["format"] == "binary"
