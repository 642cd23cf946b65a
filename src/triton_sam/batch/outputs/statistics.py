"""What the report tells about all results, gathered in one pass and in bounded memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from triton_sam.batch.records import ItemResult

SCORE_BINS = 20
#: Doubling bins: 0 is for 0, bin k for 2**(k - 1) to 2**k - 1. No image has 2**40 pixels.
DOUBLING_BINS = 41
#: So that the edges of doubling bins are whole seconds, halves, quarters.
TIMES_A_SECOND = 1024
SAMPLES = 24
_SEED = 24


@dataclass(slots=True)
class Spread:
    """Least, greatest and mean of some values."""

    count: int = 0
    total: float = 0.0
    least: float = float("inf")
    greatest: float = float("-inf")

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.greatest = max(self.greatest, value)

    @property
    def mean(self) -> float:
        """0 of no values."""
        return self.total / self.count if self.count else 0.0


def _zeros(bins: int) -> list[int]:
    return [0] * bins


@dataclass(slots=True)
class Statistics:
    """Counts over all results.

    Attributes:
        models: images by model.
        scores: masks by score in equal bins from 0 to 1; what lies outside is in the first or the last.
        areas: masks by area, masks_per_image: images by masks, times: images by 1/1024 seconds, in doubling bins.
        of_categories: masks by the id of their category, with_categories: images with at least one; not of masks
            without a category.
        masks, seconds: spreads by image; images for which nothing was asked have no seconds.
        samples: some of the images, in their order; the same ones for the same results.
    """

    images: int = 0
    models: Counter[str] = field(default_factory=Counter)
    scores: list[int] = field(default_factory=lambda: _zeros(SCORE_BINS))
    areas: list[int] = field(default_factory=lambda: _zeros(DOUBLING_BINS))
    masks_per_image: list[int] = field(default_factory=lambda: _zeros(DOUBLING_BINS))
    times: list[int] = field(default_factory=lambda: _zeros(DOUBLING_BINS))
    of_categories: Counter[int] = field(default_factory=Counter)
    with_categories: Counter[int] = field(default_factory=Counter)
    masks: Spread = field(default_factory=Spread)
    score: Spread = field(default_factory=Spread)
    area: Spread = field(default_factory=Spread)
    seconds: Spread = field(default_factory=Spread)
    _sampled: list[ItemResult] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(_SEED))

    def add(self, result: ItemResult) -> None:
        self.images += 1
        self.models[result.model] += 1
        self.masks.add(len(result.masks))
        self.masks_per_image[_doubling(len(result.masks))] += 1
        categories = [mask.category_id for mask in result.masks if mask.category_id is not None]
        self.of_categories.update(categories)
        self.with_categories.update(set(categories))
        for mask in result.masks:
            self.area.add(mask.area)
            self.areas[_doubling(mask.area)] += 1
            if mask.score == mask.score:  # a number
                self.score.add(mask.score)
                self.scores[int(min(max(mask.score * SCORE_BINS, 0), SCORE_BINS - 1))] += 1
        if result.seconds > 0:
            self.seconds.add(result.seconds)
            self.times[_doubling(int(result.seconds * TIMES_A_SECOND))] += 1
        self._sample(result)

    @property
    def samples(self) -> Sequence[ItemResult]:
        return sorted(self._sampled, key=lambda result: result.item.index)

    def _sample(self, result: ItemResult) -> None:
        """Every image is in the sample with the same probability (reservoir sampling)."""
        if len(self._sampled) < SAMPLES:
            self._sampled.append(result)
            return
        place = self._random.randrange(self.images)
        if place < SAMPLES:
            self._sampled[place] = result


def _doubling(value: int) -> int:
    return min(value.bit_length(), DOUBLING_BINS - 1)
