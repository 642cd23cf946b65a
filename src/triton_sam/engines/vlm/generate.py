"""Generates a batch with transformers' ``generate``. Each row has its own options, end and listener."""

from __future__ import annotations

import copy
import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import LogitsProcessor, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from triton_sam.engines.vlm.base import Ending, Listener, Options, Question
from triton_sam.engines.vlm.graphs import DecodeSteps, StepDecoder
from triton_sam.engines.vlm.pieces import PieceMaker
from triton_sam.engines.vlm.regions import Region
from triton_sam.errors import InvalidInput
from triton_sam.models.vlm_specs import Task

log = logging.getLogger(__name__)


class ModelAdapter(Protocol):
    """What differs between checkpoints that use ``generate``: prompt format, image input and entities."""

    without_tags: bool
    pad_token: int

    def inputs(self, question: Question) -> dict[str, torch.Tensor]:
        """``input_ids`` [1,T], ``attention_mask`` [1,T], others [1,T] along the tokens, ``pixel_values`` [1,...]."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of generated tokens, without end and padding tokens."""

    def entities(self, question: Question, tokens: Sequence[int]) -> list[Mapping[str, Any]] | None:
        """Phrases with boxes; None if the model has none."""

    def regions(self, question: Question, tokens: Sequence[int]) -> list[Region]:
        """The regions of an answer, for tasks other than ANSWER."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A question as tensors of one row, on the CPU."""

    question: Question
    inputs: Mapping[str, torch.Tensor]
    max_new_tokens: int

    @property
    def length(self) -> int:
        return int(self.inputs["input_ids"].shape[1])


class GeneratingEngine:
    """The engine for checkpoints of transformers' own classes."""

    concurrent = True

    def __init__(self, network: Any, adapter: ModelAdapter, batch: int, decoder: StepDecoder | None = None) -> None:
        self.batch = batch
        self.nbytes = sum(tensor.numel() * tensor.element_size() for tensor in network.parameters())
        self._network = network
        self._adapter = adapter
        self._decoder = decoder
        self._ends = _end_tokens(network.generation_config)
        self._context = int(getattr(network.config.get_text_config(), "max_position_embeddings", 2**31))

    def prepare(self, question: Question) -> Prepared:
        """Tokens and pixels; InvalidInput if the question exceeds the model's context."""
        inputs = self._adapter.inputs(question)
        length = int(inputs["input_ids"].shape[1])
        if length >= self._context:
            raise InvalidInput(
                f"the question has {length} tokens with its image, and the model reads {self._context}: shorten it"
            )
        return Prepared(question.without_image(), inputs, min(question.options.max_new_tokens, self._context - length))

    def answer(self, prepared: Sequence[Prepared], listeners: Sequence[Listener]) -> None:
        """Generates all answers in one batch, padded on the left."""
        rows = [
            _Row(item, listener, self._adapter, self._ends) for item, listener in zip(prepared, listeners, strict=True)
        ]
        samplers = [_Sampler(row.options) if row.options.temperature > 0 else None for row in rows]
        count = max(item.max_new_tokens for item in prepared)
        with _StreamThread(rows) as stream, torch.inference_mode():
            batch = self._collate(prepared)
            if self._decoder is not None:
                with self._decoder.borrow(batch, count) as steps:
                    if steps is not None:
                        _decode_in_steps(steps, stream, samplers, count)
                        return
            self._generate(batch, stream, samplers, count)

    def _generate(
        self, batch: Mapping[str, torch.Tensor], stream: _StreamThread, samplers: Sequence[_Sampler | None], count: int
    ) -> None:
        options = copy.deepcopy(self._network.generation_config)
        # Rows are sampled one by one, see _Sampler; the checkpoint's own options would apply to all of them.
        options.update(do_sample=False, num_beams=1, temperature=None, top_p=None, top_k=None, max_length=None)
        options.max_new_tokens = count
        options.pad_token_id = self._adapter.pad_token
        self._network.generate(
            **batch,
            generation_config=options,
            streamer=_TokenStreamer(stream),
            stopping_criteria=[_RowsDone(stream.rows)],
            logits_processor=[_SampleRows(samplers)] if any(samplers) else [],
        )

    def _collate(self, prepared: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        """[1,T] of each -> [B,longest], padded on the left; tensors without a token axis are stacked."""
        longest = max(item.length for item in prepared)
        batch = {}
        for name, first in prepared[0].inputs.items():
            along_tokens = first.shape[:2] == (1, prepared[0].length)
            fill = self._adapter.pad_token if name == "input_ids" else 0
            columns = [
                torch.nn.functional.pad(item.inputs[name], (longest - item.length, 0), value=fill)
                if along_tokens
                else item.inputs[name]
                for item in prepared
            ]
            tensor = torch.cat(columns).to(self._network.device)
            batch[name] = tensor.to(self._network.dtype) if tensor.is_floating_point() else tensor
        return batch


def _decode_in_steps(
    steps: DecodeSteps, stream: _StreamThread, samplers: Sequence[_Sampler | None], count: int
) -> None:
    """Decodes ``count`` tokens of every row, or until all have ended. The next step runs while one is sent."""
    for number in range(count):
        for place, (row, sampler) in enumerate(zip(stream.rows, samplers, strict=True)):
            if sampler is not None and not row.done:
                steps.tokens[place] = sampler(steps.logits[place])
        steps.send()
        if number + 1 < count:
            steps.advance()
        if stream.take(steps.receive()[: len(stream.rows)]):
            return


def _end_tokens(config: Any) -> frozenset[int]:
    ends = config.eos_token_id
    return frozenset() if ends is None else frozenset([ends] if isinstance(ends, int) else ends)


class _Row:
    """One answer in progress. The generating thread calls :meth:`take`, the stream thread :meth:`send`."""

    def __init__(self, prepared: Prepared, listener: Listener, adapter: ModelAdapter, ends: frozenset[int]) -> None:
        self.options = prepared.question.options
        self.done = False
        self.listener = listener
        self._prepared = prepared
        self._adapter = adapter
        self._ends = ends
        self._maker = PieceMaker(adapter.decode, self.options.stop, without_tags=adapter.without_tags)
        self._taken = 0
        self._tokens: list[int] = []
        self._ended = False

    def take(self, token: int) -> tuple[int | None, str]:
        """(the token, or None if it is an end token; why the answer ends with it, or "")."""
        if token in self._ends:
            self.done = True
            return None, "stop"
        self._taken += 1
        if self._taken < self._prepared.max_new_tokens:
            return token, ""  # does not touch `done`: the stream thread may have set it meanwhile
        self.done = True
        return token, "length"

    def send(self, token: int | None, reason: str) -> None:
        """Sends the listener the text that a token completes, and the end if there is a reason for it."""
        if self._ended:
            return
        if self.listener.is_gone():
            self.done = self._ended = True
            return
        text = ""
        if token is not None:
            self._tokens.append(token)
            text = self._maker.add(token)
            if self._maker.stopped:
                reason = "stop"
        if reason:
            self.done = self._ended = True
            text += self._maker.end()
        if text:
            self.listener.piece(text)
        if reason:
            question = self._prepared.question
            entities = self._adapter.entities(question, self._tokens)
            regions = None if question.task is Task.ANSWER else self._adapter.regions(question, self._tokens)
            self.listener.end(Ending(reason, self._prepared.length, len(self._tokens), entities, regions))


class _StreamThread:
    """A thread that turns tokens into text and sends it, so that the next token does not wait for it."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.rows = rows
        self._queue: queue.SimpleQueue[tuple[_Row, int | None, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="vlm-stream", daemon=True)

    def take(self, tokens: Sequence[int]) -> bool:
        """Queues the next token of each row. Returns whether all rows have ended."""
        for row, token in zip(self.rows, tokens, strict=True):
            if not row.done:
                self._queue.put((row, *row.take(token)))
        return all(row.done for row in self.rows)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            row, token, reason = item
            try:
                row.send(token, reason)
            except Exception:
                log.exception("an answer could not be sent")
                row.done = True

    def __enter__(self) -> _StreamThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()


class _TokenStreamer(BaseStreamer):  # type: ignore[misc]
    """Takes [B] tokens at a time from ``generate``; its first call has the prompts."""

    def __init__(self, stream: _StreamThread) -> None:
        self._stream = stream
        self._began = False

    def put(self, value: torch.Tensor) -> None:
        if not self._began:
            self._began = True
            return
        self._stream.take(value.reshape(-1).tolist())

    def end(self) -> None:
        """Nothing to do: the stream thread ends with its ``with`` block."""


class _RowsDone(StoppingCriteria):  # type: ignore[misc]
    """[B]: which rows have ended, for any reason."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self._rows = rows

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.tensor([row.done for row in self._rows], dtype=torch.bool, device=input_ids.device)


class _Sampler:
    """Samples the tokens of one row, with its own random generator."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._random = torch.Generator()
        if options.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(options.seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """[V] -> a token."""
        numbers = logits.double().cpu()  # relative to the largest, or a tiny temperature would give infinities
        chances = torch.softmax((numbers - numbers.max()) / self._options.temperature, dim=-1)
        ordered, tokens = chances.sort(descending=True)
        # The likeliest token is always kept: the probability before it is zero.
        ordered[ordered.cumsum(-1) - ordered >= self._options.top_p] = 0.0
        return int(tokens[torch.multinomial(ordered, 1, generator=self._random)])


class _SampleRows(LogitsProcessor):  # type: ignore[misc]
    """Leaves only the sampled token possible in sampled rows; ``generate`` takes the likeliest of every row."""

    def __init__(self, samplers: Sequence[_Sampler | None]) -> None:
        self._samplers = samplers

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row, sampler in enumerate(self._samplers):
            if sampler is not None:
                token = sampler(scores[row])
                scores[row] = -torch.inf
                scores[row, token] = 0.0
        return scores
