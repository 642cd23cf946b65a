"""The models that are served now, and the choice of one for a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from triton_sam.errors import ModelNotFound, NotFound, TritonSamError
from triton_sam.models.catalog import all_ids
from triton_sam.models.specs import ModelSpec, triton_name
from triton_sam.models.vlm_specs import VlmSpec

log = logging.getLogger(__name__)

_Row = TypeVar("_Row")

#: How long the list is used: a refresh reads the model repository.
_FRESH_SECONDS = 1.0
_MAX_QUOTED_NAME = 100
#: How long a list of models waits for a model that does not respond.
_DESCRIBE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ServedSegmenter:
    """One segmenter: its name in Triton and its catalogue row."""

    name: str
    spec: ModelSpec

    @property
    def embedding_shape(self) -> tuple[int, ...]:
        """[1,C,h,w] of the output that annotation tools call "the embedding"."""
        return dict(self.spec.encoder.outputs)[self.spec.encoder.embedding]


def choose(
    segmenters: Mapping[str, ModelSpec], wanted: str | None, missing: Set[str] = frozenset(), *, kind: str = "points"
) -> ServedSegmenter:
    """The segmenter for a Triton name, a catalogue id, which may be an old one, or a family; for None, the default.

    A family means the model of the same name, else its first model. NotFound lists the served models.

    Args:
        missing: models that failed to load. They are chosen only by name, and the request then fails with that reason.
        kind: of the prompt: the default is a model that takes it, if there is one.
    """
    if not segmenters:
        raise NotFound("no segmenter is served: set one up with `triton-sam setup`")
    if wanted is None:
        loaded = {name: spec for name, spec in segmenters.items() if name not in missing} or segmenters
        fitting = {name: spec for name, spec in loaded.items() if kind in spec.prompts} or loaded
        # A model whose weights are all in this package is a toy: it is the default where there is nothing else.
        fitting = {name: spec for name, spec in fitting.items() if spec.needed} or fitting
        named = [name for name, spec in fitting.items() if name == spec.family]
        name = next(iter(named or fitting))
        return ServedSegmenter(name, segmenters[name])
    if wanted in segmenters:
        return ServedSegmenter(wanted, segmenters[wanted])
    for name, spec in segmenters.items():
        ids = all_ids(spec.id)
        if wanted in ids or wanted in map(triton_name, ids):
            return ServedSegmenter(name, spec)
    for name, spec in segmenters.items():
        if wanted == spec.family:
            return ServedSegmenter(name, spec)
    raise NotFound(f"there is no model {wanted[:_MAX_QUOTED_NAME]!r}: available are {', '.join(segmenters)}")


def choose_vlm(vlms: Mapping[str, VlmSpec], wanted: str) -> tuple[str, VlmSpec]:
    """(Triton name, row) for a Triton name or a catalogue id; ModelNotFound lists the served models."""
    if not vlms:
        raise ModelNotFound("no vision-language model is served: set one up with `triton-sam setup vlm:NAME`")
    for name, spec in vlms.items():
        if wanted in (name, spec.id):
            return name, spec
    raise ModelNotFound(
        f"there is no vision-language model {wanted[:_MAX_QUOTED_NAME]!r}: available are {', '.join(vlms)}"
    )


class _CachedModels(Generic[_Row]):
    """The served models, read on a thread and cached for a moment. Belongs to the event loop."""

    def __init__(self, read: Callable[[], Mapping[str, _Row]]) -> None:
        self._read = read
        self._known: Mapping[str, _Row] = {}
        self._fresh_until = 0.0
        self._failure: Exception | None = None
        self._refreshing: asyncio.Task[None] | None = None

    async def all(self) -> Mapping[str, _Row]:
        """Triton name -> row. May be a moment old, so that a click does not wait for the disk."""
        if time.monotonic() >= self._fresh_until and self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh())
        if not self._known and self._refreshing is not None:
            await asyncio.shield(self._refreshing)
        if not self._known and self._failure is not None:
            raise self._failure.with_traceback(None)  # or the traceback would grow with each caller
        return self._known

    async def _refresh(self) -> None:
        try:
            self._known = await run_in_threadpool(self._read)
            self._failure = None
        except Exception as error:  # the old list is still usable, and a click must not fail for this
            log.exception("the list of served models cannot be read")
            self._failure = error
        finally:
            self._fresh_until = time.monotonic() + _FRESH_SECONDS
            self._refreshing = None


class ServedSegmenters(_CachedModels[ModelSpec]):
    """The served segmenters."""

    def __init__(
        self, read: Callable[[], Mapping[str, ModelSpec]], missing: Callable[[], Set[str]] = frozenset
    ) -> None:
        super().__init__(read)
        self._missing = missing

    async def find(self, wanted: str | None, kind: str = "points") -> ServedSegmenter:
        """As :func:`choose`, among the served segmenters."""
        return choose(await self.all(), wanted, self._missing(), kind=kind)

    def choose(self, known: Mapping[str, ModelSpec], wanted: str | None) -> ServedSegmenter:
        """As :func:`choose`, with the models that failed to load."""
        return choose(known, wanted, self._missing())


class EncoderPrecisions:
    """The precision of each segmenter's encoder, which only the model's process knows. Belongs to the event loop.

    Args:
        describe: Triton name -> the model's description of itself.
    """

    def __init__(self, describe: Callable[[str], Awaitable[Mapping[str, object]]]) -> None:
        self._describe = describe
        self._known: dict[str, str] = {}
        self._fresh_until: dict[str, float] = {}

    async def of(self, names: Iterable[str]) -> dict[str, str | None]:
        """Name -> precision. If a model does not respond, its last known one; None if it never responded."""
        wanted = list(names)
        await asyncio.gather(*(self._update(name) for name in wanted))
        return {name: self._known.get(name) for name in wanted}

    async def _update(self, name: str) -> None:
        if time.monotonic() < self._fresh_until.get(name, 0.0):
            return
        try:
            precision = (await asyncio.wait_for(self._describe(name), _DESCRIBE_SECONDS)).get("encoder")
        except (TritonSamError, TimeoutError, asyncio.TimeoutError):  # two different classes in Python 3.10
            return
        if isinstance(precision, str):
            self._known[name] = precision
            self._fresh_until[name] = time.monotonic() + _FRESH_SECONDS


class ServedVlms(_CachedModels[VlmSpec]):
    """The served vision-language models."""

    async def find(self, wanted: str) -> tuple[str, VlmSpec]:
        """As :func:`choose_vlm`, among the served models."""
        return choose_vlm(await self.all(), wanted)
