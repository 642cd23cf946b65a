"""The first generator, for training: scenes on the GPU, and what is asked about them.

What is found: the things that the text describes, and those with the shape and the colour of a positive exemplar,
without those with the shape and the colour of a negative one.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import NamedTuple

import torch
from torch import Tensor

from training.concepts.drawing import FIRST_GREY, Painter, Things
from training.concepts.network import MASK_SIDE, PADDING, SIDE
from training.concepts.words import (
    ANY,
    COLOURS,
    SHAPES,
    SIZES,
    TEXTURES,
    VISUAL,
    Concept,
    make_tokenizer,
    phrase,
    stranger,
)

#: The most things in a scene, places that are tried, concepts of a scene, and boxes of a concept.
THINGS, _TRIED = 25, 36
CONCEPTS, EXEMPLARS = 4, 4
#: Half of the longest extent in pixels of a small and of a large thing; nothing is between them.
RADII = ((15.0, 21.0), (33.0, 54.0))
#: Cells of a mask that a thing needs to be one.
_LEAST = 6
_SQUARE, _RECTANGLE, _DIAMOND, _HEART = (SHAPES.index(name) for name in ("square", "rectangle", "diamond", "heart"))
#: How often an attribute is named: shape, colour, size, texture.
_NAMED = (0.75, 0.65, 0.25, 0.22)
_WORDS_ONLY, _BOXES_ONLY = 0.67, 0.18
_FALSE, _EVERYTHING, _STRANGERS = 0.7, 0.03, 0.04


class Batch(NamedTuple):
    """B scenes of N things and C concepts each.

    Attributes:
        images: [B,3,336,336] in 0..1.
        masks, boxes, there: [B,N,96,96] ninths (uint8), [B,N,4] xyxy in 0..1, [B,N] of what is visible.
        attributes: [B,N,4] shape, colour, size, texture.
        tokens, token_mask: [B,C,32].
        exemplars, labels: [B,C,4,4] cxcywh in 0..1, and [B,C,4], 1, 0 or PADDING.
        found: [B,C,N], what belongs to a concept.
        named, described: [B,C,4] attributes that the text names, and [B,C] whether it has words that are known.
    """

    images: Tensor
    masks: Tensor
    boxes: Tensor
    there: Tensor
    attributes: Tensor
    tokens: Tensor
    token_mask: Tensor
    exemplars: Tensor
    labels: Tensor
    found: Tensor
    named: Tensor
    described: Tensor


class Phrases:
    """Tables of tokens for all combinations of attributes."""

    def __init__(self, device: torch.device, seed: int, ways: int = 40) -> None:
        """
        Args:
            ways: phrases for each combination.
        """
        self._ways = ways
        tokenizer, rng = make_tokenizer(), random.Random(seed)
        combinations = [
            Concept(*(number - 1 for number in one))
            for one in itertools.product(*(range(len(names) + 1) for names in (SHAPES, COLOURS, SIZES, TEXTURES)))
        ]
        texts = [phrase(concept, rng) for concept in combinations for _ in range(ways)]
        strangers = [stranger(rng.choice(combinations), rng) for _ in range(100 * ways)]
        self.known = self._table(tokenizer, texts, device).unflatten(0, (-1, ways))
        self.strangers = self._table(tokenizer, strangers, device)
        self.visual = self._table(tokenizer, [VISUAL], device)[0]

    @staticmethod
    def _table(tokenizer: object, texts: list[str], device: torch.device) -> Tensor:
        """[K,2,32] tokens and their mask, int16."""
        encoded = tokenizer.encode_batch(texts)  # type: ignore[attr-defined]
        both = [[one.ids, one.attention_mask] for one in encoded]
        return torch.tensor(both, dtype=torch.int16).to(device)

    def of(self, concepts: Tensor, way: Tensor) -> Tensor:
        """[...,4] attributes and [...] numbers in 0..1 -> [...,2,32]."""
        shape, colour, size, texture = (concepts + 1).unbind(-1)
        row = ((shape * (len(COLOURS) + 1) + colour) * (len(SIZES) + 1) + size) * (len(TEXTURES) + 1) + texture
        return self.known[row, (way * self._ways).long()]


class Scenes:
    """Makes batches without an end; the same seed makes the same ones on the same kind of device."""

    def __init__(self, device: str, seed: int, phrases: Phrases | None = None, fast: bool = False) -> None:
        self._painter = Painter(torch.Generator(device).manual_seed(seed), fast)
        self._named = torch.tensor(_NAMED, device=device)
        self.phrases = phrases or Phrases(self._painter.device, seed)

    @property
    def random(self) -> torch.Generator:
        """Where all chance comes from."""
        return self._painter.random

    @torch.no_grad()
    def batch(self, scenes: int) -> Batch:
        """Draws scenes, and asks for concepts."""
        painter = self._painter
        ground, visible = painter.grounds(scenes)
        things = self._things(scenes, visible)
        masks, boxes = painter.masks(things)
        there = things.there & (masks.flatten(2).sum(2, dtype=torch.int32) >= 9 * _LEAST)
        images = painter.paint(things, ground)
        attributes = torch.stack([things.shape, things.colour, things.size, things.texture], -1)
        return self.asked(images, masks, boxes, there, attributes)

    # -- things ------------------------------------------------------------------------------------------------

    def _things(self, scenes: int, visible: Tensor) -> Things:
        """Attributes from a few of each kind, so that things have some in common, at places with little overlap."""
        painter, tried = self._painter, (scenes, _TRIED)
        shape = self._few(torch.ones(scenes, len(SHAPES), device=painter.device))
        colour = self._few(visible.float() + 1e-6)
        busy = painter.uniform(scenes, 1)
        size = (painter.uniform(*tried) > 0.25 + 0.65 * busy).long()
        (small, less), (large, more) = RADII
        share = painter.uniform(*tried)
        radius = torch.where(size > 0, large + (more - large) * share, small + (less - small) * share)
        texture = (
            painter.uniform(*tried, high=4).long() * (painter.uniform(*tried) < painter.uniform(scenes, 1))
        ).long()
        texture = torch.where(colour >= FIRST_GREY, 0, texture)
        margin = radius * 0.85
        x, y = (margin + painter.uniform(*tried) * (SIDE - 2 * margin) for _ in range(2))
        wanted = 1 + (busy[:, 0] * painter.uniform(scenes, low=0.4) * THINGS).long()
        kept = self._apart(x, y, radius, wanted)
        order = (kept.int() * 2 + painter.uniform(*tried)).argsort(1, descending=True)[:, :THINGS]
        angle, aspect = self._poses(shape)
        fields = (shape, colour, size, texture, x, y, radius, angle, aspect, kept)
        return Things(*(field.gather(1, order) for field in fields))

    def _few(self, weights: Tensor) -> Tensor:
        """[B,K] -> [B,T] numbers below K, of which only a few are used in a scene."""
        painter = self._painter
        scenes = len(weights)
        # Six by their weights; torch.multinomial would wait for the device.
        several = (
            (-painter.uniform(*weights.shape).clamp(min=1e-9).log() / weights).topk(6, dim=1, largest=False).indices
        )
        width = 1 + painter.uniform(scenes, 1, high=6).long()
        return several.gather(1, (painter.uniform(scenes, _TRIED) * width).long())

    def _apart(self, x: Tensor, y: Tensor, radius: Tensor, wanted: Tensor) -> Tensor:
        """[B,T]: which of the tried places are taken."""
        close = self._painter.uniform(len(x), 1, low=0.72, high=1.15)
        kept = torch.zeros_like(x, dtype=torch.bool)
        for number in range(_TRIED):
            far = torch.hypot(x - x[:, number, None], y - y[:, number, None])
            free = far >= close * (radius + radius[:, number, None])
            kept[:, number] = (free | ~kept).all(1) & (kept.sum(1) < wanted)
        return kept

    def _poses(self, shape: Tensor) -> tuple[Tensor, Tensor]:
        """Angles and aspects that leave a shape what it is: a square on its corner would be a diamond."""
        painter = self._painter
        angle = painter.uniform(*shape.shape, low=-math.pi, high=math.pi)
        little = (shape == _SQUARE) | (shape == _DIAMOND) | (shape == _HEART)
        angle = torch.where(little, angle * 0.11, angle)
        spread = torch.where(shape == _RECTANGLE, 0.2, 0.07)
        return angle, 1 + painter.uniform(*shape.shape, low=-1) * spread

    # -- concepts ----------------------------------------------------------------------------------------------

    def _pick(self, allowed: Tensor) -> tuple[Tensor, Tensor]:
        """[B,C,N] -> one of each row's things [B,C], and whether there was one."""
        chance = self._painter.uniform(*allowed.shape) * allowed
        return chance.argmax(2), allowed.any(2)

    def _concepts(self, attributes: Tensor, there: Tensor) -> Tensor:
        """[B,C,4] attributes that a text names: those of a thing, of which half have one changed."""
        painter, scenes = self._painter, len(attributes)
        every = there[:, None].expand(-1, CONCEPTS, -1)
        rows = torch.arange(scenes, device=painter.device)[:, None]
        one, other = (attributes[rows, self._pick(every)[0]] for _ in range(2))
        strange = torch.stack(
            [painter.uniform(scenes, CONCEPTS, high=len(names)).long() for names in (SHAPES, COLOURS, SIZES, TEXTURES)],
            -1,
        )
        named = painter.uniform(scenes, CONCEPTS, 4) < self._named
        nothing = ~named.any(2, keepdim=True)
        named[..., :2] |= nothing & (painter.uniform(scenes, CONCEPTS, 2) < 0.7)
        changed = torch.where(painter.uniform(scenes, CONCEPTS, 1) < 0.5, other, strange)
        which = (painter.uniform(scenes, CONCEPTS, 4) * named).argmax(2, keepdim=True)
        false = painter.uniform(scenes, CONCEPTS, 1) < _FALSE
        one = torch.where(false & (torch.arange(4, device=painter.device) == which), changed, one)
        everything = painter.uniform(scenes, CONCEPTS, 1) < _EVERYTHING
        return torch.where(named & ~everything, one, ANY)

    @torch.no_grad()
    def asked(self, images: Tensor, masks: Tensor, boxes: Tensor, there: Tensor, attributes: Tensor) -> Batch:
        """Asks for concepts in scenes that are drawn."""
        painter, scenes = self._painter, len(attributes)
        concepts = self._concepts(attributes, there)
        same = (attributes[:, None] == concepts[:, :, None]) | (concepts[:, :, None] == ANY)
        exists = there[:, None].expand(-1, CONCEPTS, -1)
        by_text = same.all(3) & exists  # [B,C,N]
        tokens = self.phrases.of(concepts, painter.uniform(scenes, CONCEPTS))
        strange = painter.uniform(scenes, CONCEPTS) < _STRANGERS
        drawn = painter.uniform(scenes, CONCEPTS, high=len(self.phrases.strangers)).long()
        tokens = torch.where(strange[..., None, None], self.phrases.strangers[drawn], tokens)
        by_text &= ~strange[..., None]
        kind = painter.uniform(scenes, CONCEPTS)
        boxes_only = kind > 1 - _BOXES_ONLY
        tokens = torch.where(boxes_only[..., None, None], self.phrases.visual, tokens)
        by_text &= ~boxes_only[..., None]
        alike = (attributes[:, :, None, :2] == attributes[:, None, :, :2]).all(3)  # [B,N,N]
        chosen, labels = self._exemplars(by_text, exists, alike, boxes_only, kind > _WORDS_ONLY)
        rows = torch.arange(scenes, device=painter.device)[:, None, None]
        like = alike[rows, chosen]  # [B,C,E,N]
        positive = (like & (labels == 1)[..., None]).any(2)
        negative = (like & (labels == 0)[..., None]).any(2)
        found = (by_text | positive) & ~negative & exists
        exemplars, described = self._by_hand(boxes[rows, chosen]), ~strange & ~boxes_only
        words = tokens.long().unbind(2)
        return Batch(images, masks, boxes, there, attributes, *words, exemplars, labels, found, concepts, described)

    def _exemplars(
        self, by_text: Tensor, exists: Tensor, alike: Tensor, boxes_only: Tensor, given: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Numbers of things and labels, each [B,C,4]: up to three positive ones, then a negative one."""
        painter = self._painter
        rows = torch.arange(len(by_text), device=painter.device)[:, None]
        chance = painter.uniform(*by_text.shape[:2], 5)
        # Mostly something that the text describes; now and then something else.
        natural = torch.where((boxes_only | (chance[..., 0] < 0.1))[..., None], exists, by_text)
        first, usable = self._pick(natural)
        first_given = given & usable & (boxes_only | (chance[..., 1] < 0.7))
        like = alike[rows, first]
        second, more = self._pick(torch.where(boxes_only[..., None], like, by_text) & exists)
        second_given = first_given & more & (chance[..., 2] < 0.45)
        third, _ = self._pick(exists)
        third_given = first_given & (chance[..., 3] < 0.12)
        kinds = [(first, first_given), (second, second_given), (third, third_given)]
        wanted = torch.zeros_like(exists)
        for thing, is_given in kinds:
            wanted |= alike[rows, thing] & is_given[..., None]
        allowed = exists & ~wanted
        described = allowed & by_text
        allowed = torch.where(described.any(2, keepdim=True), described, allowed)
        against, possible = self._pick(allowed)
        against_given = given & possible & (chance[..., 4] < 0.35)
        labels = [torch.where(is_given, 1, PADDING) for _, is_given in kinds]
        labels.append(torch.where(against_given, 0, PADDING))
        chosen = torch.stack([first, second, third, against], 2)
        labels_ = torch.stack(labels, 2)
        # Padding comes last, as in the reference.
        order = (labels_ == PADDING).int().argsort(dim=2, stable=True)
        return chosen.gather(2, order), labels_.gather(2, order)

    def _by_hand(self, boxes: Tensor) -> Tensor:
        """xyxy -> cxcywh, as inexact as a drawn box."""
        size = boxes[..., 2:] - boxes[..., :2]
        moved = boxes + self._painter.uniform(*boxes.shape, low=-0.08, high=0.08) * torch.cat([size, size], -1)
        moved = moved.clamp(0, 1)
        return torch.cat([(moved[..., :2] + moved[..., 2:]) / 2, (moved[..., 2:] - moved[..., :2]).clamp(min=0.01)], -1)


assert MASK_SIDE * 7 == 2 * SIDE
