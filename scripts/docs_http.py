"""The generated part of docs/reference/http.md: each path of the service, from its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from triton_sam.service.app import create_app
from triton_sam.service.upstream import Upstream
from triton_sam.settings import Settings

Document = Mapping[str, Any]

#: OpenAPI's tags in the order of the page, with their headings.
_SECTIONS = {
    "segment": "Images and masks",
    "videos": "Videos",
    "chat": "Vision-language models",
    "about the server": "About the server",
    "samples": "Sample images",
    "SAM service": "Routes of older tools",
}
_SUCCESS = range(200, 400)
#: Status -> (meaning, where) of what is answered before a request comes to a route.
_BEFORE_A_ROUTE = {
    "403": ("The web page's origin is not in `TRITON_SAM_CORS_ORIGINS`", "WebSockets"),
    "405": ("The path does not have this method; Allow has those that it has", "every path"),
}
#: What the examples fill in.
_GIVEN = {"video_id": "$id", "number": "0", "object_id": "1", "model": "moondream2", "name": "cells", "format": "mp4"}
_FILES = {"file": "clip.mp4", "model": "embedding.gz"}


def http_reference() -> str:
    """Every path, by section: what it takes, what it answers, and an example."""
    document = create_app(Upstream(dict, dict), Settings.model_construct()).openapi()
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    everywhere = set.intersection(*(set(operation["responses"]) for _, _, operation in operations))
    errors = {
        code: answer["description"]
        for _, _, operation in operations
        for code, answer in operation["responses"].items()
        if int(code) not in _SUCCESS
    }
    errors |= {code: meaning for code, (meaning, _) in _BEFORE_A_ROUTE.items()}
    lines = ["## Status codes", "", "| status | meaning | where |", "|---|---|---|"]
    where = {code: place for code, (_, place) in _BEFORE_A_ROUTE.items()} | dict.fromkeys(everywhere, "every route")
    for code in sorted(errors):
        lines.append(f"| {code} | {errors[code]} | {where.get(code, 'where it is named')} |")
    used: dict[str, None] = {}
    unknown = {tag for _, _, operation in operations for tag in operation["tags"]} - set(_SECTIONS)
    assert not unknown, f"give these tags a heading in {__name__}.py: {unknown}"
    for tag, title in _SECTIONS.items():
        lines += ["", f"## {title}", ""]
        for method, path, operation in operations:
            if operation["tags"] == [tag]:
                lines += _operation(document, method, path, operation, everywhere, used)
    lines += ["## Objects", "", *_objects(document, used)]
    return "\n".join(lines).rstrip() + "\n"


def _operation(
    document: Document, method: str, path: str, operation: Document, everywhere: set[str], used: dict[str, None]
) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`"
    yield ""
    yield f"{operation['summary']}. {operation.get('description', '')}".strip()
    yield ""
    parameters = operation.get("parameters", [])
    if parameters:
        yield from ("| parameter | in | type | default | meaning |", "|---|---|---|---|---|")
        for one in parameters:
            schema = one["schema"]
            meaning = one.get("description") or schema.get("description", "")
            yield (
                f"| `{one['name']}` | {one['in']} | {_type(schema, used)} | "
                f"{_default(schema, required=one.get('required', False))} | {_cell(meaning)} |"
            )
        yield ""
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from _body(document, media, content["schema"], used)
    for code, answer in operation["responses"].items():
        if int(code) in _SUCCESS:
            yield _answer(code, answer, used)
    called = _curl(document, method, path, operation)
    if called:
        yield from (f"Example: `{called}`", "")
    further = [code for code in operation["responses"] if int(code) not in _SUCCESS and code not in everywhere]
    if further:
        yield f"Errors besides those of every route: {', '.join(sorted(further))}."
    yield ""


def _body(document: Document, media: str, schema: Document, used: dict[str, None]) -> Iterator[str]:
    known = document["components"]["schemas"]
    if "$ref" not in schema:
        yield from (f"The body is the file (`{media}`).", "")
        return
    name = schema["$ref"].rpartition("/")[2]
    body = known[name]
    yield f"Body `{media}`: {body.get('description', '')}".strip()
    yield ""
    yield from _fields(body, used)
    for example in body.get("examples", [])[:1]:
        if media == "application/json":
            yield from ("```json", json.dumps(example, ensure_ascii=False), "```", "")


def _curl(document: Document, method: str, path: str, operation: Document) -> str:
    """The call, unless the body is JSON: its example is shown beside the fields then."""
    contents = operation.get("requestBody", {}).get("content", {})
    if "application/json" in contents:
        return ""
    wanted = [one["name"] for one in operation.get("parameters", []) if one["in"] == "query" and one.get("required")]
    query = "&".join(f"{name}={_GIVEN.get(name, '0')}" for name in wanted)
    for name, value in _GIVEN.items():
        path = path.replace(f"{{{name}}}", value)
    words = ["curl -s", *([f"-X {method.upper()}"] if method not in ("get", "post") or not contents else [])]
    address = f"localhost:8080{path}{f'?{query}' if query else ''}"
    words = [word for word in words if word != "-X GET"] + [f'"{address}"' if query else address]
    for media, content in contents.items():
        if media == "multipart/form-data":
            body = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
            for name, value in next(iter(body.get("examples", [])), {}).items():
                is_file = body["properties"][name].get("format") == "binary"
                words.append(f"-F {name}=@{_FILES.get(name, 'photo.jpg')}" if is_file else f"-F {name}={value}")
        else:
            words.append("-T frame.jpg")
    return " ".join(words)


def _fields(schema: Document, used: dict[str, None]) -> Iterator[str]:
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        default = _default(field, required=name in required)
        yield f"| `{name}` | {_type(field, used)} | {default} | {_cell(field.get('description', ''))} |"
    yield ""


def _answer(code: str, answer: Document, used: dict[str, None]) -> str:
    described = answer["description"].rstrip(".")
    described = "" if described == "Successful Response" else f"{described}. "
    contents = []
    for media, content in answer.get("content", {}).items():
        schema = content.get("schema", {})
        shown = _type(schema, used) if "$ref" in schema or schema.get("items") else ""
        contents.append(shown if shown and media == "application/json" else f"`{media}`")
    headers = [f"`{name}`" for name in answer.get("headers", {})]
    told = f"with the header {', '.join(headers)}" if headers else ""
    return f"**{code}** {described}{' or '.join(contents)} {told}".strip() + "\n"


def _objects(document: Document, used: dict[str, None]) -> Iterator[str]:
    """The answers and the objects in them; what one names is added while they are written."""
    known = document["components"]["schemas"]
    done: set[str] = set()
    while pending := [name for name in used if name not in done]:
        for name in pending:
            done.add(name)
            schema = known[name]
            yield f"### {name}"
            yield ""
            if schema.get("description"):
                yield from (" ".join(schema["description"].replace("``", "`").split()), "")
            yield from _answer_fields(schema, used)
            for example in schema.get("examples", [])[:1]:
                yield from ("```json", json.dumps(example, ensure_ascii=False), "```", "")


def _answer_fields(schema: Document, used: dict[str, None]) -> Iterator[str]:
    yield from ("| field | type | meaning |", "|---|---|---|")
    for name, field in schema.get("properties", {}).items():
        yield f"| `{name}` | {_type(field, used)} | {_cell(field.get('description', ''))} |"
    yield ""


def _type(schema: Document, used: dict[str, None]) -> str:
    """A schema in a few words; objects are links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        used.setdefault(name)
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{_plain(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{_plain(schema['const'])}`"
    for kind in ("anyOf", "oneOf"):
        if kind in schema:
            return " or ".join(_type(one, used) for one in schema[kind] if one.get("type") != "null")
    if schema.get("format") == "binary":
        return "file"
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"[{len(schema['prefixItems'])} numbers]"
        return f"list of {_type(schema['items'], used)}" if schema.get("items") else "list"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"object of {_type(values, used)}" if isinstance(values, dict) and values else "object"
    bounds = [f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in schema]
    return " ".join([str(schema.get("type", "any")), *bounds[:1], *(f"and {one}" for one in bounds[1:])])


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _default(schema: Document, *, required: bool) -> str:
    if required:
        return "required"
    default = schema.get("default")
    return "" if default in (None, "", []) else f"`{_plain(default)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


#: The parts by the names that the pages use.
PARTS: dict[str, Callable[[], str]] = {"http": http_reference}
