"""What a job is: a run with the same folder must mean the same job."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_sam.batch.records import SegmentOptions, WordOptions
from triton_sam.core.image_choice import ImageChoice
from triton_sam.core.json_values import short
from triton_sam.errors import InvalidInput

#: Of the JSON; a later one has a greater number.
_VERSION = 1
_CHUNK = 1 << 20
_SHOWN = 3
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class PromptsFile:
    """A file of prompts, and what tells whether it has changed.

    Attributes:
        kind: ``coco`` or ``csv``.
        path: absolute.
        sha256: hexadecimal.
    """

    kind: str
    path: str
    size: int
    mtime_ns: int
    sha256: str

    @staticmethod
    def of(kind: str, path: Path, known: PromptsFile | None = None) -> PromptsFile:
        """The file as it is now.

        Args:
            known: of an earlier run; if size and mtime are the same, the file is not read again.
        """
        path = path.expanduser().absolute()
        try:
            state = path.stat()
            if (
                known is not None
                and (known.path, known.size, known.mtime_ns) == (str(path), state.st_size, state.st_mtime_ns)
                and known.kind == kind
            ):
                return known
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        except OSError as error:
            raise InvalidInput(f"the prompts file {path} cannot be read: {error.strerror or error}") from error
        return PromptsFile(kind, str(path), state.st_size, state.st_mtime_ns, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class JobDefinition:
    """All that decides what the results of a job are. Addresses, tokens and workers may change between its runs.

    Attributes:
        inputs: as the user gave them.
        prompts: None in everything mode and with words.
        outputs: options of each by its name: ``{"coco": {}, "labels": {"format": "png"}}``.
    """

    inputs: Sequence[str]
    options: SegmentOptions
    prompts: PromptsFile | None = None
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: int = _VERSION

    @property
    def digest(self) -> str:
        """Equal for equal jobs, also where the prompts file was only moved or touched."""
        return hashlib.sha256(json.dumps(_essence(self), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        content = _essence(self)
        if self.prompts is not None:
            content["prompts"] |= {"path": self.prompts.path, "mtime_ns": self.prompts.mtime_ns}
        return json.dumps(content)

    @staticmethod
    def from_json(text: str) -> JobDefinition:
        """InvalidInput if it is of another version, or damaged."""
        try:
            content = json.loads(text)
            if content["version"] > _VERSION:
                raise InvalidInput(
                    "the job was begun by a newer version of triton-sam: update this one, or give another --out"
                )
            options = content["options"]
            choice = options["choice"]
            window, words = choice["window"], options.get("words")
            return JobDefinition(
                tuple(content["inputs"]),
                SegmentOptions(
                    options["model"],
                    options["everything"],
                    options["clean"],
                    ImageChoice(choice["page"], choice["channel"], None if window is None else tuple(window)),
                    None if words is None else WordOptions(**{**words, "texts": tuple(words["texts"])}),
                ),
                None if content["prompts"] is None else PromptsFile(**content["prompts"]),
                content["outputs"],
                content["version"],
            )
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidInput("the job's definition is damaged: begin again with another --out") from error


def differences(old: JobDefinition, new: JobDefinition) -> str:
    """One sentence that names what differs, and the fix; empty if both are the same job."""
    found = _found(_essence(old), _essence(new), new.prompts)
    if not found:
        return ""
    rest = [f"{len(found) - _SHOWN} more differences"] if len(found) > _SHOWN else []
    return (
        f"the folder holds another job: {_listed(found[:_SHOWN] + rest)}; give another --out, or the former "
        f"{'option' if len(found) == 1 else 'options'}"
    )


def _found(old: Mapping[str, Any], new: Mapping[str, Any], prompts: PromptsFile | None) -> list[str]:
    found = []
    if old["version"] != new["version"]:
        found.append(f"its format was {old['version']} and is {new['version']}")
    if old["inputs"] != new["inputs"]:
        found.append(f"the inputs were {_some(old['inputs'])} and are {_some(new['inputs'])}")
    found += _of_prompts(old["prompts"], new["prompts"], prompts)
    before, after = (dict(one["options"]) for one in (old, new))
    everything = before.pop("everything"), after.pop("everything")
    if (everything[0] is None) != (everything[1] is None):
        found.append(
            "everything mode was off and is on" if everything[0] is None else "everything mode was on and is off"
        )
    else:
        found += _changed(everything[0] or {}, everything[1] or {})
    found += _changed(_of_words(before.pop("words", None)), _of_words(after.pop("words", None)))
    choices = before.pop("choice"), after.pop("choice")
    found += _changed(before, after) + _changed(*choices)
    outputs = old["outputs"], new["outputs"]
    if set(outputs[0]) != set(outputs[1]):
        found.append(f"the outputs were {_listed(sorted(outputs[0]))} and are {_listed(sorted(outputs[1]))}")
    for name in sorted(set(outputs[0]) & set(outputs[1])):
        found += _changed(outputs[0][name], outputs[1][name], f"{name} ")
    return found


def _of_words(words: Mapping[str, Any] | None) -> dict[str, Any]:
    if words is None:
        return {}
    limits = {name.replace("_", " "): value for name, value in words.items() if name != "texts" and value is not None}
    return {"text": ", ".join(f'"{text}"' for text in words["texts"]), **limits}


def _of_prompts(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None, prompts: PromptsFile | None) -> list[str]:
    if old == new:
        return []
    if old is None and new is not None:
        return [f"prompts were not given and are {new['kind']}"]
    if new is None and old is not None:
        return [f"prompts were {old['kind']} and are not given"]
    assert old is not None
    assert new is not None
    assert prompts is not None
    if old["kind"] != new["kind"]:
        return [f"prompts were {old['kind']} and are {new['kind']}"]
    return [f"the prompts in {Path(prompts.path).name} were others when the job began"]


def _changed(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    return [
        f"{prefix}{name} was {_value(old.get(name, _ABSENT))} and is {_value(new.get(name, _ABSENT))}"
        for name in sorted(set(old) | set(new))
        if old.get(name, _ABSENT) != new.get(name, _ABSENT)
    ]


def _value(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "not given"
    return value if isinstance(value, str) else short(value)


def _some(inputs: Sequence[str]) -> str:
    shown = [short(text) for text in inputs[:_SHOWN]]
    return _listed(shown + ([f"{len(inputs) - _SHOWN} more"] if len(inputs) > _SHOWN else []))


def _listed(words: Sequence[str]) -> str:
    if not words:
        return "none"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _essence(definition: JobDefinition) -> dict[str, Any]:
    """What must be equal, as JSON gives it back: lists for tuples, plain numbers for numpy's."""
    options, prompts = definition.options, definition.prompts
    choice = options.choice
    content: dict[str, Any] = {
        "version": definition.version,
        "inputs": list(definition.inputs),
        "options": {
            "model": options.model,
            "everything": None if options.everything is None else dict(options.everything),
            "clean": options.clean,
            "choice": {"page": choice.page, "channel": choice.channel, "window": choice.window},
        },
        "prompts": None if prompts is None else {"kind": prompts.kind, "size": prompts.size, "sha256": prompts.sha256},
        "outputs": {name: dict(of) for name, of in definition.outputs.items()},
    }
    if options.words is not None:
        content["options"]["words"] = dataclasses.asdict(options.words)
    essence: dict[str, Any] = json.loads(json.dumps(content, default=_plain))
    return essence


def _plain(value: Any) -> Any:
    """A number or an array of numpy; a path."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise InvalidInput(f"an option of a job must be JSON, not {short(value)}")
