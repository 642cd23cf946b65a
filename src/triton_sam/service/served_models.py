"""Which segmenter or vision-language model a request means."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from triton_sam.errors import ModelNotFound, NotFound, TritonSamError
from triton_sam.models.specs import ModelSpec
from triton_sam.models.vlm_specs import VlmSpec

log = logging.getLogger(__name__)

_Row = TypeVar("_Row")

#: Asking again reads the model repository.
_FRESH_SECONDS = 1.0
_LONGEST_NAME = 100
#: How long a list of models waits for one that does not answer.
_ABOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Served:
    """One segmenter: its name among Triton's models, and its row."""

    name: str
    spec: ModelSpec

    @property
    def embedding_shape(self) -> tuple[int, ...]:
        """[1,C,h,w] of what outside tools call "the embedding"."""
        return dict(self.spec.encoder.outputs)[self.spec.encoder.embedding]


def choose(segmenters: Mapping[str, ModelSpec], wanted: str | None, missing: Set[str] = frozenset()) -> Served:
    """The segmenter of a Triton name, a catalogue id or a family; of None, the default.

    A family means the model that bears its name, else its first; NotFound names what is served.

    Args:
        missing: models that do not load: only who names one gets it, and is told so.
    """
    if not segmenters:
        raise NotFound("no segmenter is served here: set one up with `triton-sam setup`")
    if wanted is None:
        loaded = {name: spec for name, spec in segmenters.items() if name not in missing} or segmenters
        named = [name for name, spec in loaded.items() if name == spec.family]
        name = next(iter(named or loaded))
        return Served(name, segmenters[name])
    if wanted in segmenters:
        return Served(wanted, segmenters[wanted])
    for name, spec in segmenters.items():
        if wanted in (spec.id, spec.variant_name):
            return Served(name, spec)
    for name, spec in segmenters.items():
        if wanted == spec.family:
            return Served(name, spec)
    raise NotFound(f"there is no model {wanted[:_LONGEST_NAME]!r} here: served are {', '.join(segmenters)}")


def choose_vlm(vlms: Mapping[str, VlmSpec], wanted: str) -> tuple[str, VlmSpec]:
    """(Triton name, row) of a Triton name or a catalogue id; ModelNotFound names what is served."""
    if not vlms:
        raise ModelNotFound("no vision-language model is served here: set one up with `triton-sam setup vlm:NAME`")
    for name, spec in vlms.items():
        if wanted in (name, spec.id):
            return name, spec
    raise ModelNotFound(
        f"there is no vision-language model {wanted[:_LONGEST_NAME]!r} here: served are {', '.join(vlms)}"
    )


class _Known(Generic[_Row]):
    """What is served, asked for on a thread and remembered for a moment. Belongs to the event loop."""

    def __init__(self, ask: Callable[[], Mapping[str, _Row]]) -> None:
        self._ask = ask
        self._known: Mapping[str, _Row] = {}
        self._fresh_until = 0.0
        self._failure: Exception | None = None
        self._asking: asyncio.Task[None] | None = None

    async def all(self) -> Mapping[str, _Row]:
        """Triton name -> row; as it was a moment ago, because a click shall not wait for a disk."""
        if time.monotonic() >= self._fresh_until and self._asking is None:
            self._asking = asyncio.create_task(self._ask_again())
        if not self._known and self._asking is not None:
            await asyncio.shield(self._asking)
        if not self._known and self._failure is not None:
            raise self._failure.with_traceback(None)  # or it would grow with everyone who is told
        return self._known

    async def _ask_again(self) -> None:
        try:
            self._known = await run_in_threadpool(self._ask)
            self._failure = None
        except Exception as error:  # what was known is better than nothing, and a click shall not fail for it
            log.exception("what is served cannot be read")
            self._failure = error
        finally:
            self._fresh_until = time.monotonic() + _FRESH_SECONDS
            self._asking = None


class Models(_Known[ModelSpec]):
    """The segmenters."""

    def __init__(self, ask: Callable[[], Mapping[str, ModelSpec]], missing: Callable[[], Set[str]] = frozenset) -> None:
        super().__init__(ask)
        self._missing = missing

    async def find(self, wanted: str | None) -> Served:
        """As :func:`choose`, among what is served now."""
        return self.choose(await self.all(), wanted)

    def choose(self, known: Mapping[str, ModelSpec], wanted: str | None) -> Served:
        """As :func:`choose`, with what does not load now."""
        return choose(known, wanted, self._missing())


class Encoders:
    """In which numbers each segmenter's encoder computes, which only its own process knows. Belongs to the event loop.

    Args:
        ask: Triton name -> what the model says about itself.
    """

    def __init__(self, ask: Callable[[str], Awaitable[Mapping[str, object]]]) -> None:
        self._ask = ask
        self._known: dict[str, str] = {}
        self._fresh_until: dict[str, float] = {}

    async def of(self, names: Iterable[str]) -> dict[str, str | None]:
        """Name -> numbers; as last told where a model does not answer now, and None where it never did."""
        wanted = list(names)
        await asyncio.gather(*(self._look(name) for name in wanted))
        return {name: self._known.get(name) for name in wanted}

    async def _look(self, name: str) -> None:
        if time.monotonic() < self._fresh_until.get(name, 0.0):
            return
        try:
            told = (await asyncio.wait_for(self._ask(name), _ABOUT_SECONDS)).get("encoder")
        except (TritonSamError, TimeoutError, asyncio.TimeoutError):  # two different ones in Python 3.10
            return
        if isinstance(told, str):
            self._known[name] = told
            self._fresh_until[name] = time.monotonic() + _FRESH_SECONDS


class Vlms(_Known[VlmSpec]):
    """The vision-language models."""

    async def find(self, wanted: str) -> tuple[str, VlmSpec]:
        """As :func:`choose_vlm`, among what is served now."""
        return choose_vlm(await self.all(), wanted)
