"""The end of a job: what is known of it, and the files that are about all images."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from PIL import Image

from triton_sam.batch.outputs.choosing import files_of
from triton_sam.batch.outputs.facts import FailureGroup, JobFacts
from triton_sam.batch.outputs.merge import write_outputs
from triton_sam.batch.records import Item, ItemResult
from triton_sam.batch.state.definition import JobDefinition
from triton_sam.batch.state.disk_errors import disk_stopped
from triton_sam.batch.state.opening import results_of
from triton_sam.batch.state.results import ResultFiles
from triton_sam.batch.state.store import JobStore

#: Reasons and examples in a report.
_MOST_REASONS, _MOST_EXAMPLES = 50, 20


def finish(
    store: JobStore,
    files: ResultFiles,
    definition: JobDefinition,
    picture: Callable[[Item], Image.Image],
    checked: Callable[[Iterable[ItemResult]], Iterator[ItemResult]],
) -> None:
    """Writes what is about all images, and the report.

    Args:
        checked: the results go through it; it may raise, to end this.

    Raises:
        JobStopped: the disk is full or gone, or a result is.
    """
    facts = job_facts(store, definition)
    try:
        write_outputs(store.folder, _names(definition), checked(results_of(store, files)), facts, picture)
    except OSError as error:
        raise disk_stopped(store.folder, error) from error
    store.note_finished()


def are_there(folder: Path, definition: JobDefinition) -> bool:
    """Whether the files that :func:`finish` writes are there."""
    return all((folder / name).exists() for name in files_of(_names(definition)))


def _names(definition: JobDefinition) -> list[str]:
    return [*definition.outputs, "report"]


def job_facts(store: JobStore, definition: JobDefinition) -> JobFacts:
    """What the report and the files' headers say of a job."""
    state, words = store.facts(), definition.options.words
    return JobFacts(
        began=datetime.fromtimestamp(state.created, timezone.utc),
        seconds=state.running_seconds,
        done=state.counts.done,
        failed=state.counts.failed,
        waiting=state.counts.waiting,
        failures=_failures(store),
        definition=_shown(definition),
        categories=store.categories() if words is None else words.categories,
        version=importlib.metadata.version("triton-sam"),
        from_coco=definition.prompts is not None and definition.prompts.kind == "coco",
        clean=definition.options.clean,
    )


def _failures(store: JobStore) -> list[FailureGroup]:
    """By reason, the most frequent first. With many different reasons the last group has the rest of them."""
    counts: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    for failure in store.failures():
        reason = failure.reason.replace(failure.name, "the image")
        if reason not in counts and len(counts) >= _MOST_REASONS:
            reason = "other reasons"
        counts[reason] = counts.get(reason, 0) + 1
        named = examples.setdefault(reason, [])
        if len(named) < _MOST_EXAMPLES:
            named.append(failure.name)
    ordered = sorted(counts, key=lambda reason: -counts[reason])
    return [FailureGroup(reason, counts[reason], examples[reason]) for reason in ordered]


def _shown(definition: JobDefinition) -> Mapping[str, Any]:
    """A job's definition in the words of the command line."""
    options, prompts = definition.options, definition.prompts
    shown: dict[str, Any] = {"inputs": ", ".join(definition.inputs), "model": options.model}
    if prompts is not None:
        shown["prompts"] = f"{prompts.kind} {prompts.path}"
    if options.everything is not None:
        chosen = ", ".join(f"{name}={value}" for name, value in options.everything.items())
        shown["everything"] = chosen or "defaults"
    if options.words is not None:
        words = options.words
        shown |= {"text": ", ".join(words.texts), "score_threshold": words.score_threshold}
        shown["max_instances"] = words.max_instances
    for name in ("channel", "window"):
        if getattr(options.choice, name) is not None:
            shown[name] = getattr(options.choice, name)
    if options.clean:
        shown["clean"] = f"{options.clean} pixels"
    shown["saved"] = ", ".join(definition.outputs)
    return shown
