"""One frame of some objects: attention to memories, the mask decoder, and what is remembered of the result."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.engines.torch.decoder import NOT_A_POINT, RowDecoder
from triton_sam.engines.torch.layout import to_image
from triton_sam.engines.torch.tracking_attention import Attended, RowMemory
from triton_sam.engines.torch.tracking_encoder import RowMemoryEncoder

#: The logits of an object that is not there.
NOT_THERE = -1024.0
_POINTER = 256


class Flags(NamedTuple):
    """What is true of each row, 0 or 1; a person's prompt or mask sets the ones after the first.

    Attributes:
        attends: it sees memories; if not, the embedding as it is.
        several: the best of the masks for ambiguous prompts is chosen.
        hard: only signs of logits are remembered.
        masked: the mask input is part of the prompt.
        given: the mask is given by a person: the decoder only makes a pointer, from the bare embedding.
        shown: the given mask has pixels.
    """

    attends: Any = 0
    several: Any = 0
    hard: Any = 0
    masked: Any = 0
    given: Any = 0
    shown: Any = 0


FLAGS = len(Flags._fields)


class TrackShape(NamedTuple):
    """Sizes that a step is made for.

    Attributes:
        rows: number of rows.
        slots, pointers: slots for memories and pointers.
        points: slots for prompts; 0 if no row has a prompt.
    """

    rows: int
    slots: int
    pointers: int
    points: int

    @property
    def numbers(self) -> int:
        """Length of a row of :meth:`split`."""
        return self.slots + self.pointers + 2 + FLAGS + 3 * self.points

    def split(self, numbers: Any) -> list[Any]:
        """[B,...] float32 -> ages [B,S], distances [B,P], counts [B,2], flags [B,F], points [B,3*points]."""
        found, start = [], 0
        for length in (self.slots, self.pointers, 2, FLAGS, 3 * self.points):
            found.append(numbers[:, start : start + length])
            start += length
        return found


class TrackStep(nn.Module):
    """Everything of a frame behind the image encoder."""

    def __init__(self, network: Any, decoder: RowDecoder, traits: MemoryTraits, side: int) -> None:
        """
        Args:
            network: with the layers of :mod:`triton_sam.networks.memory_layers`.
            decoder: of the same network; it is shared.
            side: of the model's input, pixels.
        """
        super().__init__()
        self.decoder = decoder
        self.width = traits.width
        #: Of memories, as published; float32 to compare with references that do not round them.
        self.kept_in = torch.bfloat16
        grid = decoder.layout.grid
        self.memory = RowMemory(network, traits, grid)
        self.encoder = RowMemoryEncoder(network, traits, side, grid)
        self.appearance = copy.deepcopy(network.mask_decoder.pred_obj_score_head)
        self.pointer = copy.deepcopy(network.object_pointer_proj)
        self.no_object = nn.Buffer(network.no_object_pointer.detach().float().clone())
        self.no_memory = nn.Buffer(network.no_memory_embedding.detach().float().reshape(-1).clone())
        # What the prompt encoder gets of a frame that is only tracked: two points that are none.
        self.nothing = nn.Buffer(torch.tensor([[[0.0, 0.0, NOT_A_POINT]] * 2]))
        self.eval().requires_grad_(False)

    def cast(self, device: torch.device, dtype: torch.dtype) -> TrackStep:
        """Moves it to a device; ``dtype`` is that of attention and memories. The decoder keeps its own."""
        self.memory.cast(device, dtype)
        self.encoder.cast(device, dtype)
        for part in (self.appearance, self.pointer):  # small; scores decide, and pointers are kept
            part.to(device, torch.float32)
        self.no_object = nn.Buffer(self.no_object.to(device))
        self.no_memory = nn.Buffer(self.no_memory.to(device))
        self.nothing = nn.Buffer(self.nothing.to(device))
        return self

    # Many parameters: compilers take plain tensors.
    def forward(
        self,
        rows: Tensor,
        numbers: Tensor,
        cells: Tensor,
        pointers: Tensor,
        masks: Tensor | None = None,
        given: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """
        Args:
            rows: [B,length], images in the order of the layout.
            numbers: [B,...] float32, see :meth:`TrackShape.split`; the sizes follow from the other inputs.
            cells: [B,S*n+P*4,C]; pointers: [B,P,256] float32; see :class:`~.tracking_attention.Attended`.
            masks: [B,1,h,w] float32, logits as prompts; None if there are no prompts.
            given: [B,h,w] float32, logits of masks that are given; with ``masks``.

        Returns:
            [B,h,w] float32 logits; [B,4] float32: score, appearance, sum of the memory and of the pointer, which are
            finite if those are; [B,256] float32 pointers; and [B,n,C] memories in bfloat16.
        """
        shape = self.shape_of(rows, numbers, cells, pointers)
        ages, distances, counts, listed, points = shape.split(numbers)
        flags = Flags(*(listed[:, index] > 0.5 for index in range(FLAGS)))
        decoder = self.decoder
        parts = decoder.layout.split(rows)
        embedding, *features = [parts[name] for name, _, _ in decoder.layout.parts]
        attended = Attended(cells, ages.int(), pointers, distances, counts.int())
        seen = self.memory(embedding, attended)
        image = torch.where(_each(flags.attends, 2), seen, embedding.float())
        if masks is None:
            placed = image.to(decoder.dtype) + decoder.no_mask
            tokens = decoder.prompt_tokens(self.nothing.expand(len(rows), -1, -1))
        else:
            image = image - torch.where(_each(flags.given, 2), self.no_memory, 0.0)
            prompt = torch.where(_each(flags.masked, 2), decoder.dense(masks), decoder.no_mask)
            placed = image.to(decoder.dtype) + prompt
            tokens = decoder.prompt_tokens(points.reshape(len(rows), -1, 3))
        last, upscaled = decoder.look(placed, *tokens)
        appearance = self.appearance(last[:, 0].float())[:, 0]
        there = appearance > 0
        logits, score, token = self._chosen(last, upscaled, features, flags.several)
        pointer = torch.where(_each(there, 1), self.pointer(token.float()), self.no_object)
        logits = torch.where(_each(there, 2), logits, NOT_THERE)
        if given is not None:
            appearance = torch.where(flags.given, torch.where(flags.shown, _GIVEN, -_GIVEN), appearance)
            pointer = torch.where(_each(flags.given & ~flags.shown, 1), self.no_object, pointer)
            logits = torch.where(_each(flags.given, 2), given, logits)
            score = torch.where(flags.given, 1.0, score)
        memories = self.encoder(embedding, logits, flags.hard, appearance > 0)
        facts = torch.stack([score, appearance, memories.sum((1, 2)), pointer.sum(1)], dim=1)
        return logits, facts, pointer, memories.to(self.kept_in)

    def shape_of(self, rows: Tensor, numbers: Tensor, cells: Tensor, pointers: Tensor) -> TrackShape:
        """The sizes of inputs of :meth:`forward`."""
        count, kept = len(self.memory.places), pointers.shape[1]
        slots = (cells.shape[1] - kept * (_POINTER // self.width)) // count
        points = (numbers.shape[1] - slots - kept - 2 - FLAGS) // 3
        return TrackShape(len(rows), slots, kept, points)

    def _chosen(
        self, tokens: Tensor, image: Tensor, features: list[Tensor], several: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B,h,w] logits of the best mask, [B] its score, and [B,256] the token that becomes the pointer."""
        decoder = self.decoder
        weights, scores = decoder.heads(tokens)
        cells = decoder.cells(image, features, weights).float()
        choice = torch.where(several, 1 + scores[:, 1:].argmax(-1), decoder.choice(cells, scores))
        best = cells.gather(1, choice[:, None, None].expand(-1, 1, cells.shape[2]))[:, 0]
        place = decoder.first_mask + torch.where(several, choice, 0)
        token = tokens.gather(1, place[:, None, None].expand(-1, 1, tokens.shape[2]))[:, 0]
        return to_image(best, decoder.layout.grid), scores.gather(1, choice[:, None])[:, 0], token


#: The appearance of a given mask, whose logits are between this and its negative.
_GIVEN = 10.0


def _each(flags: Tensor, axes: int) -> Tensor:
    """[B] -> [B,1,...] with so many more axes."""
    return flags.reshape(-1, *(1,) * axes)
