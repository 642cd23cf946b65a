"""What can be said about a vision-language model: the row type of its catalogue.

Code branches on these data, never on a model's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: A Triton model answers once for each request, or piece by piece, never both: each model has two names.
STREAM_SUFFIX = "_stream"
#: Of an answer; the service and the backend both refuse more.
MAX_TEMPERATURE = 2.0


class Adapter(str, Enum):
    """How a checkpoint is spoken to; ``engines/vlm`` has one class for each."""

    CHAT = "chat"
    """a chat template, then generate (LLaVA)"""
    GROUNDED = "grounded"
    """plain text, then generate; phrases of the answer have boxes (Kosmos-2)"""
    OWN_CODE = "own-code"
    """the checkpoint brings its code, which answers by itself (moondream2)"""


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """Files of a Hugging Face repository at one commit.

    Attributes:
        revision: a commit, or a tag that its owner promises not to move.
        files: patterns of the files that are needed, never pickles; those without a wildcard must be there.
    """

    repo: str
    revision: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VlmSpec:
    """All that the rest of the code may know about one vision-language model.

    Attributes:
        id: what users type, ``vlm:name``.
        source: None where the checkpoint comes with this package.
        size: bytes of the checkpoint, about.
        parameters: numbers in the network, in millions.
        remote_code: whether the checkpoint's own code must run; only from the pinned revision, or a user's folder.
        chats: whether it follows a conversation; the others answer one question at a time.
        grounds: whether phrases of its answers have boxes.
        parts: small repositories beside ``source`` that the checkpoint's code asks for (a tokenizer).
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

    @property
    def name(self) -> str:
        """Its Triton name: one answer for one request."""
        return self.id.partition(":")[2]

    @property
    def stream_name(self) -> str:
        """The Triton name under which answers come piece by piece."""
        return self.name + STREAM_SUFFIX
