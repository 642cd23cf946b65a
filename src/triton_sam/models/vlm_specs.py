"""The row type of the catalogue of vision-language models.

Code branches on these data, never on a model's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from triton_sam.errors import Unsupported

#: A Triton model gives one response for each request, or a stream, never both. Each model therefore has two names.
STREAM_SUFFIX = "_stream"
#: The service and the backend refuse more.
MAX_TEMPERATURE = 2.0


class Adapter(str, Enum):
    """How a checkpoint is called; ``engines/vlm`` has one class for each."""

    CHAT = "chat"
    """a chat template, then generate (LLaVA)"""
    GROUNDED = "grounded"
    """plain text, then generate; phrases of the answer have boxes (Kosmos-2)"""
    OWN_CODE = "own-code"
    """the checkpoint's own code generates the answer (moondream2)"""


class Task(str, Enum):
    """What a request asks of a model; ``answer`` is what every model can."""

    ANSWER = "answer"
    """text"""
    DETECT = "detect"
    """a box of each object with the name that the prompt is"""
    POINT = "point"
    """a point on each of them"""
    GROUND = "ground"
    """the regions of what the prompt asks for, as the model finds them best, and its text"""


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """Files of a Hugging Face repository at one commit.

    Attributes:
        revision: a commit, or a tag that its owner promises not to move.
        files: patterns of the needed files, never pickles; those without a wildcard must exist.
    """

    repo: str
    revision: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VlmSpec:
    """One vision-language model: everything that the rest of the code knows about it.

    Attributes:
        id: what users type, ``vlm:name``.
        source: None if the checkpoint is part of this package.
        size: approximate bytes of the checkpoint.
        parameters: parameters of the network, in millions.
        remote_code: whether the checkpoint's own code must run; only from the pinned revision, or a user's folder.
        chats: whether it follows a conversation; the others answer single questions.
        grounds: whether phrases of its answers have boxes.
        parts: further small repositories that the checkpoint's code needs (a tokenizer).
        tasks: those beside ``answer``; regions come with them.
        places: for a model that only says places: its words for each cell of a grid, row by row.
        asks_where: the question for the place of ``{object}``, for a model that has no other form for it.
    """

    id: str
    title: str
    licence: str
    adapter: Adapter
    source: HubSnapshot | None
    size: int
    parameters: float
    best_for: str = ""
    remote_code: bool = False
    chats: bool = False
    grounds: bool = False
    parts: tuple[HubSnapshot, ...] = ()
    tasks: tuple[Task, ...] = ()
    places: tuple[tuple[str, ...], ...] = ()
    asks_where: str = ""

    def check_task(self, task: Task) -> None:
        """Raises Unsupported for a task that the model cannot do."""
        if task is Task.ANSWER or task in self.tasks:
            return
        if not self.tasks:
            raise Unsupported(f"{self.name} answers in words and gives no places: `triton-sam models` has others")
        offered = " and ".join(kind.value for kind in self.tasks)
        raise Unsupported(f"{self.name} does not do the task {task.value}: choose {offered}")

    @property
    def name(self) -> str:
        """Its Triton name: one response for each request."""
        return self.id.partition(":")[2]

    @property
    def stream_name(self) -> str:
        """The Triton name of the model that streams its answers."""
        return self.name + STREAM_SUFFIX
