"""Masks that stay where they were made, in a device's memory, until it is known that they are wanted.

Their run lengths are made there, for all that are wanted at once: one by one would take a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol

from triton_sam.core.rle import BoolArray, from_rle


class RunEncoder(Hashable, Protocol):
    """Makes run lengths of masks. Equal ones take each other's masks."""

    def run_lengths(self, blocks: Sequence[Any]) -> list[dict[str, Any]]:
        """What :class:`HeldMask` holds -> COCO's RLE of each in the whole image. Waits for the device."""


class HeldMask:
    """See :class:`~triton_sam.core.everything.candidates.Mask`."""

    __slots__ = ("_block", "_document", "encoder", "nbytes")

    def __init__(self, encoder: RunEncoder, block: Any, nbytes: int) -> None:
        """
        Args:
            block: in the device's memory, whatever the encoder takes.
            nbytes: of the block.
        """
        self.encoder = encoder
        self.nbytes = nbytes
        self._block = block
        self._document: dict[str, Any] | None = None

    @property
    def is_encoded(self) -> bool:
        return self._document is not None

    def rle(self) -> dict[str, Any]:
        if self._document is None:
            encode_held([self])
        assert self._document is not None
        return self._document

    def pixels(self) -> BoolArray:
        return from_rle(self.rle())


def encode_held(masks: Iterable[object]) -> None:
    """Makes the run lengths of those masks that are held and have none yet; of other masks, nothing."""
    groups: dict[RunEncoder, list[tuple[HeldMask, Any]]] = {}
    for mask in masks:
        if isinstance(mask, HeldMask) and (block := mask._block) is not None:
            groups.setdefault(mask.encoder, []).append((mask, block))
    for encoder, group in groups.items():
        documents = encoder.run_lengths([block for _, block in group])
        for (mask, _), document in zip(group, documents, strict=True):
            mask._document = document
            mask._block = None  # the device's memory can go
