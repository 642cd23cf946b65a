"""The requests for concepts that have no answer: how many are taken, whose turn it is, and how many are half done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from triton_sam.backend.jobs import SegmentJob
from triton_sam.core.fair_queue import FairQueue, PeopleFirstQueue, background_share
from triton_sam.engines.concepts import ConceptRow, Instances

#: Concepts of requests that have no answer: on two cores the last one takes half a minute.
MOST_ROWS = 128
#: Concepts of people's requests that are begun and have no answer: four large ones. What was found for them is in
#: memory: on a CPU 16 MB of logits for each concept if its threshold lets everything pass. The background has half.
MOST_OPEN = 64


@dataclass(slots=True)
class PromisedConcepts:
    """Concepts of all jobs that were admitted and are not answered, wherever they are. Guarded by the lock."""

    people: int = 0
    background: int = 0

    def add(self, job: SegmentJob, sign: int = 1) -> None:
        """Counts an admitted job; with ``sign`` -1 it has its answer."""
        if job.background:
            self.background += sign * job.concept_count
        else:
            self.people += sign * job.concept_count

    def refusal(self, job: SegmentJob, superseded: Sequence[SegmentJob]) -> int | None:
        """How many concepts wait already if those of a job are too many; None if they are not.

        Those in the background take no place from people. A job that would wait alone is never too large.

        Args:
            superseded: jobs that are counted and get no answer any more.
        """
        left = PromisedConcepts(self.people, self.background)
        for old in superseded:
            left.add(old, -1)
        waiting, room = left.people, MOST_ROWS - left.people
        if job.background:
            waiting += left.background
            room = min(MOST_ROWS - waiting, background_share(MOST_ROWS) - left.background)
        return waiting if waiting and job.concept_count > room else None


@dataclass(eq=False, slots=True)
class Entry:
    """A request of which something is left to find, or whose answer is being built.

    Attributes:
        found: what was found of each of its concepts so far.
        begun: whether a row of it had its turn.
        dropped: whether it was cancelled while its answer was being built.
        seconds: of the calls in which its rows were.
    """

    job: SegmentJob
    found: list[Instances | None]
    begun: bool = False
    dropped: bool = False
    started: float = 0.0
    asked: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Task:
    """One concept of a request."""

    entry: Entry
    index: int
    row: ConceptRow


@dataclass(eq=False, slots=True)
class ConceptQueue:
    """Rows in turns, and the requests that they belong to. The scheduler's lock guards it.

    Attributes:
        entries: requests of which something is left to find.
        open: requests that were begun and are not answered: their results are in memory.
    """

    tasks: PeopleFirstQueue[Task] = field(default_factory=lambda: PeopleFirstQueue(MOST_ROWS))
    entries: list[Entry] = field(default_factory=list)
    open: list[Entry] = field(default_factory=list)

    def of_people(self) -> int:
        """How many requests people wait for."""
        return sum(not entry.job.background for entry in self.entries)

    def add(self, job: SegmentJob) -> None:
        """Takes all rows of a job whose image is encoded."""
        rows = job.concept_rows()
        entry = Entry(job, [None] * len(rows))
        self.entries.append(entry)
        for index, row in enumerate(rows):
            self.tasks.put(Task(entry, index, row), job.turn, background=job.background)

    def drop_answers(self, unwanted: Callable[[SegmentJob], bool]) -> list[Entry]:
        """Notes and returns requests whose answer is being built. They stay open: its thread has yet to notice."""
        dropped = [
            entry
            for entry in self.open
            if not (entry in self.entries or entry.dropped or entry.job.answered) and unwanted(entry.job)
        ]
        for entry in dropped:
            entry.dropped = True
        return dropped

    def forget(self, entries: Sequence[Entry]) -> None:
        """Removes requests: nothing is left to find."""
        self.entries = [entry for entry in self.entries if entry not in entries]
        self.tasks.take(lambda task: task.entry in entries)

    def close(self, entries: Sequence[Entry]) -> None:
        """Notes that the results of requests are not in memory any more, so that others may be begun."""
        self.open = [entry for entry in self.open if entry not in entries]

    def take(self, most: int, *, background: bool) -> list[Task]:
        """Up to ``most`` rows of one image, whose turn it is. A request is begun only if few concepts are open.

        One that does not fit is not overtaken by smaller ones: else it might wait for ever.
        """
        queue: FairQueue[Task] = self.tasks.background if background else self.tasks.people
        mine = sum(entry.job.concept_count for entry in self.open if entry.job.background is background)
        room = (background_share(MOST_OPEN) if background else MOST_OPEN) - mine
        alone = mine == 0

        def begin(task: Task) -> bool:
            nonlocal room, alone
            entry = task.entry
            if not entry.begun:
                entry.begun = alone or entry.job.concept_count <= room
                room = room - entry.job.concept_count if entry.begun else 0
                alone = False
                if entry.begun:
                    self.open.append(entry)
            return entry.begun

        first = queue.pop_if(begin)
        if first is None:
            return []
        image = first.entry.job.embedding
        return [first, *queue.take(lambda task: task.entry.job.embedding is image and begin(task), most - 1)]


def entries_of(tasks: Sequence[Task]) -> list[Entry]:
    """The requests of rows, each once."""
    return list({id(task.entry): task.entry for task in tasks}.values())
