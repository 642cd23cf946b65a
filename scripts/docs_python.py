"""The generated part of docs/reference/python.md: the public Python API, from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import triton_sam
from triton_sam import concepts, demo, masks, vlm

#: Heading -> (module, its names on the page).
_GROUPS: dict[str, list[tuple[ModuleType, tuple[str, ...]]]] = {
    "Segmentation": [
        (triton_sam, ("SAM2TritonClient", "Segmentation", "ConceptSegmentation", "ConceptPredictor")),
        (concepts, ("FoundConcept",)),
    ],
    "Clicks and hovers": [
        (
            triton_sam,
            ("SpeculativeSAM2Client", "SessionStatus", "queue_multiple_requests", "wait_for_latest_result"),
        )
    ],
    "Videos and stacks": [(triton_sam, ("SAM2VideoClient", "AsyncSAM2VideoClient", "save_labels"))],
    "Vision-language models": [
        (triton_sam, ("TritonVLMClient", "AsyncTritonVLMClient")),
        (vlm, ("Answer", "Entity", "Grounded", "Region")),
    ],
    "Batch jobs": [(triton_sam, ("BatchJob",))],
    "Masks": [(triton_sam, ("MaskSet",)), (masks, ("decode", "encode", "overlay", "polygons", "png"))],
    "Samples": [(demo, ("sample_photograph",))],
}
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Example|Examples):$")
_ENTRY = re.compile(r"^(?P<names>[\w*][\w*, ]*): (?P<text>.*)$", re.DOTALL)
_WIDTH = 88


def python_reference() -> str:
    """Every public class and function with its signature and docstring."""
    shown = {name for entries in _GROUPS.values() for _, names in entries for name in names}
    missing = set(triton_sam.__all__) - shown - {"__version__"}
    assert not missing, f"give these names a place in {__name__}.py: {missing}"
    lines: list[str] = []
    for title, entries in _GROUPS.items():
        lines += [f"## {title}", ""]
        for module, names in entries:
            for name in names:
                lines += _described(module, name, getattr(module, name))
    return "\n".join(lines).rstrip() + "\n"


def _described(module: ModuleType, name: str, thing: Any) -> Iterator[str]:
    yield f"### `{module.__name__}.{name}`"
    yield ""
    if not inspect.isclass(thing):
        yield from _call(name, thing)
        return
    if issubclass(thing, enum.Enum):
        yield from _prose(inspect.getdoc(thing))
        yield f"Values: {', '.join(f'`{member.name}`' for member in thing)}."
        yield ""
        return
    # A dataclass is made by the clients: its fields are of interest, and not how it is built.
    own = "" if dataclasses.is_dataclass(thing) else inspect.getdoc(vars(thing).get("__init__"))
    if not dataclasses.is_dataclass(thing):
        yield from _signature(name, thing)
    yield from _prose(inspect.getdoc(thing))
    if dataclasses.is_dataclass(thing) and "Attributes:" not in (inspect.getdoc(thing) or ""):
        own_names = inspect.get_annotations(thing)
        fields = [field for field in dataclasses.fields(thing) if field.name in own_names and field.name[0] != "_"]
        yield from [*(f"- `{field.name}`: `{field.type}`" for field in fields), ""]
    yield from _prose(own)
    for member, value in _members(thing):
        yield f"#### `{name}.{member}`"
        yield ""
        if isinstance(value, property):
            yield from _prose(inspect.getdoc(value))
        else:
            yield from _call(member, value)


def _members(cls: type) -> list[tuple[str, Any]]:
    """Public methods and properties, those of its own bases included, in the order of the source."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("triton_sam"):
            for name, value in vars(base).items():
                kind = isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
                if kind and not name.startswith("_"):
                    found.setdefault(name, getattr(cls, name))
    return [(name, value) for name, value in found.items() if inspect.getdoc(value)]


def _call(name: str, function: Any) -> Iterator[str]:
    yield from _signature(name, function)
    yield from _prose(inspect.getdoc(function))


def _signature(name: str, thing: Any) -> Iterator[str]:
    signature = inspect.signature(thing)
    words: list[str] = []
    has_star = False
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not has_star:
            words.append("*")
        has_star = has_star or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        words.append(_parameter(one))
    returned = "" if inspect.isclass(thing) else f" -> {signature.return_annotation}"
    start = f"{'async ' if _is_async(thing) else ''}{name}("
    text = f"{start}{', '.join(words)}){returned}"
    if len(text) > _WIDTH and words:
        text = "\n    ".join([start, *(f"{word}," for word in words)]) + f"\n){returned}"
    yield from ("```text", text, "```", "")


def _parameter(one: inspect.Parameter) -> str:
    """As in the source; annotations are texts there, which inspect would quote."""
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    annotation = "" if one.annotation is one.empty else f": {one.annotation}"
    default = "" if one.default is one.empty else f" = {one.default!r}" if annotation else f"={one.default!r}"
    return f"{stars}{one.name}{annotation}{default}"


def _is_async(thing: Any) -> bool:
    return inspect.iscoroutinefunction(thing) or inspect.isasyncgenfunction(thing)


def _prose(text: str | None) -> Iterator[str]:
    """A docstring as Markdown: its sections are lists."""
    if not text:
        return
    section, block = "", list[str]()
    for line in [*text.splitlines(), "Returns:"]:  # the last one only ends the section before
        match = _SECTION.match(line)
        if match:
            yield from _section(section, block)
            section, block = match[1], []
        else:
            block.append(line)


def _section(name: str, lines: list[str]) -> Iterator[str]:
    body = textwrap.dedent("\n".join(lines)).strip("\n")
    if not body.strip():
        return
    if not name:
        yield from (_marked(body), "")
        return
    if name in ("Example", "Examples"):
        yield from ("```python", body, "```", "")
        return
    if name in ("Returns", "Yields"):
        yield from (f"{name}: {_marked(' '.join(body.split()))}", "")
        return
    yield from (f"{name}:", "")
    for entry in re.split(r"\n(?=\S)", body):
        flat = " ".join(entry.split())
        match = _ENTRY.match(flat)
        if match is None:
            yield f"- {_marked(flat)}"
        else:
            names = ", ".join(f"`{one.strip()}`" for one in match["names"].split(","))
            yield f"- {names}: {_marked(match['text'])}"
    yield ""


def _marked(text: str) -> str:
    """Sphinx's roles and doubled backticks as Markdown's code."""
    text = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")


#: The parts by the names that the pages use.
PARTS: dict[str, Callable[[], str]] = {"python": python_reference}
