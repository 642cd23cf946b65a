"""Opens the state of a job: sets a new one up, or makes sure that an old one is the same job."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

from triton_sam.batch.records import ItemResult
from triton_sam.batch.state import database
from triton_sam.batch.state.database import STATE_FILE, sentences, shown, transaction
from triton_sam.batch.state.definition import JobDefinition, differences
from triton_sam.batch.state.disk_errors import disk_stopped
from triton_sam.batch.state.filling import JobInput, fill
from triton_sam.batch.state.results import ResultFiles
from triton_sam.batch.state.source_list import compare_sources
from triton_sam.batch.state.store import JobStore
from triton_sam.errors import InvalidInput, JobStopped, NotFound

_SHOWN = 3

log = logging.getLogger(__name__)


def known_definition(folder: Path) -> JobDefinition | None:
    """What the job in a folder is; None if none was set up there."""
    if not (folder / STATE_FILE).exists():
        return None
    connection = database.connect(folder)
    try:
        with sentences(folder):
            if not database.is_filled(connection):
                return None
            (text,) = connection.execute("SELECT value FROM facts WHERE name = 'definition'").fetchone()
    finally:
        connection.close()
    return JobDefinition.from_json(text)


def open_job(folder: Path, definition: JobDefinition, given: JobInput) -> JobStore:
    """The state of the job in a folder that this process has locked.

    A new one is set up: whole, or not at all. Of an old one the definition and the sources are compared, and images
    whose results are missing wait again.

    Raises:
        InvalidInput: there are no images, prompts have none, or the folder's job is another one.
        JobStopped: the folder cannot be written, or the disk is full.
    """
    files = ResultFiles(folder)
    connection = database.connect(folder)
    try:
        with sentences(folder):
            if is_new := not database.is_filled(connection):
                facts = {"definition": definition.to_json(), "digest": definition.digest, "created": repr(time.time())}
                fill(connection, given, facts)
            else:
                (text,) = connection.execute("SELECT value FROM facts WHERE name = 'definition'").fetchone()
                _compare(JobDefinition.from_json(text), definition)
                compare_sources(connection, given.sources)
                with transaction(connection):  # the prompts file may have been moved
                    connection.execute("UPDATE facts SET value = ? WHERE name = 'definition'", (definition.to_json(),))
            database.write_ahead(connection)
            store = JobStore(folder, connection)
    except BaseException:
        connection.close()
        raise
    try:
        files.prepare()
        if not is_new:
            forget_missing(store, files)
    except OSError as error:
        store.close()
        raise disk_stopped(folder, error) from error
    except BaseException:
        store.close()
        raise
    return store


def forget_missing(store: JobStore, files: ResultFiles) -> int:
    """Lets images wait again whose results are recorded and not there; returns how many. Lists folders only."""
    present = files.present()
    first, there = next(present, (None, set[int]()))
    missing: list[int] = []
    count = 0
    for index in store.done_indexes():
        begin = index - index % files.per_folder
        while first is not None and first < begin:
            first, there = next(present, (None, set[int]()))
        if first != begin or index not in there:
            count += 1
            missing.append(index)
            if len(missing) >= 1000:
                store.reset(missing)
                missing.clear()
    store.reset(missing)
    if count:
        log.warning("%d recorded results are not in %s any more: they are made again", count, files.folder)
    return count


def results_of(store: JobStore, files: ResultFiles) -> Iterator[ItemResult]:
    """All results in index order, in a stream.

    Raises:
        JobStopped: one is missing or damaged. Its image waits again then.
    """
    for item in store.done():
        try:
            yield files.read(item)
        except (NotFound, InvalidInput) as error:
            store.reset([item.index])
            raise JobStopped(
                f"the result of {shown(item.name)} cannot be read ({error}): the same command makes it again"
            ) from error
        except OSError as error:
            raise JobStopped(
                f"{files.path(item.index)} cannot be read ({error.strerror or error}): "
                "when it can be again, the same command goes on"
            ) from error


def _compare(old: JobDefinition, new: JobDefinition) -> None:
    if told := differences(old, new):
        raise InvalidInput(told)
