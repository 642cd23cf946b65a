"""One batch through transformers' own ``generate``: each row with its own options, its own end and its own listener."""

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
from triton_sam.errors import InvalidInput

log = logging.getLogger(__name__)


class Speaker(Protocol):
    """What differs between checkpoints that ``generate``: their words and their images."""

    without_tags: bool
    pad_token: int

    def inputs(self, question: Question) -> dict[str, torch.Tensor]:
        """``input_ids`` [1,T], ``attention_mask`` [1,T], others [1,T] along the tokens, ``pixel_values`` [1,...]."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of generated tokens, without those that only end or pad."""

    def entities(self, question: Question, tokens: Sequence[int]) -> list[Mapping[str, Any]] | None:
        """Phrases with boxes; None where the model has none."""


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
    """A checkpoint of transformers' own classes."""

    concurrent = True

    def __init__(self, network: Any, speaker: Speaker, batch: int, decoder: StepDecoder | None = None) -> None:
        self.batch = batch
        self.nbytes = sum(tensor.numel() * tensor.element_size() for tensor in network.parameters())
        self._network = network
        self._speaker = speaker
        self._decoder = decoder
        self._ends = _end_tokens(network.generation_config)
        self._context = int(getattr(network.config.get_text_config(), "max_position_embeddings", 2**31))

    def prepare(self, question: Question) -> Prepared:
        """Tokens and pixels; InvalidInput where the question is longer than what the model can read."""
        inputs = self._speaker.inputs(question)
        length = int(inputs["input_ids"].shape[1])
        if length >= self._context:
            raise InvalidInput(
                f"the question has {length} tokens with its image, and the model reads {self._context}: ask shorter"
            )
        return Prepared(question.without_image(), inputs, min(question.options.max_new_tokens, self._context - length))

    def answer(self, prepared: Sequence[Prepared], listeners: Sequence[Listener]) -> None:
        """Generates all answers in one batch, padded on the left."""
        rows = [
            _Row(item, listener, self._speaker, self._ends) for item, listener in zip(prepared, listeners, strict=True)
        ]
        draws = [_Draw(row.options) if row.options.temperature > 0 else None for row in rows]
        count = max(item.max_new_tokens for item in prepared)
        with _Talker(rows) as talker, torch.inference_mode():
            batch = self._collate(prepared)
            if self._decoder is not None:
                with self._decoder.borrow(batch, count) as steps:
                    if steps is not None:
                        _walk(steps, talker, draws, count)
                        return
            self._generate(batch, talker, draws, count)

    def _generate(
        self, batch: Mapping[str, torch.Tensor], talker: _Talker, draws: Sequence[_Draw | None], count: int
    ) -> None:
        options = copy.deepcopy(self._network.generation_config)
        # Drawing is done row by row, see _Draw; what a checkpoint asks for would apply to all of them.
        options.update(do_sample=False, num_beams=1, temperature=None, top_p=None, top_k=None, max_length=None)
        options.max_new_tokens = count
        options.pad_token_id = self._speaker.pad_token
        self._network.generate(
            **batch,
            generation_config=options,
            streamer=_Take(talker),
            stopping_criteria=[_Done(talker.rows)],
            logits_processor=[_DrawRows(draws)] if any(draws) else [],
        )

    def _collate(self, prepared: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        """[1,T] of each -> [B,longest], padded on the left; what has no tokens along it is stacked."""
        longest = max(item.length for item in prepared)
        batch = {}
        for name, first in prepared[0].inputs.items():
            along_tokens = first.shape[:2] == (1, prepared[0].length)
            fill = self._speaker.pad_token if name == "input_ids" else 0
            columns = [
                torch.nn.functional.pad(item.inputs[name], (longest - item.length, 0), value=fill)
                if along_tokens
                else item.inputs[name]
                for item in prepared
            ]
            tensor = torch.cat(columns).to(self._network.device)
            batch[name] = tensor.to(self._network.dtype) if tensor.is_floating_point() else tensor
        return batch


def _walk(steps: DecodeSteps, talker: _Talker, draws: Sequence[_Draw | None], count: int) -> None:
    """``count`` tokens of every row, or until all have ended; the next step is under way while one is passed on."""
    for number in range(count):
        for place, (row, draw) in enumerate(zip(talker.rows, draws, strict=True)):
            if draw is not None and not row.done:
                steps.tokens[place] = draw(steps.logits[place])
        steps.send()
        if number + 1 < count:
            steps.advance()
        if talker.take(steps.receive()[: len(talker.rows)]):
            return


def _end_tokens(config: Any) -> frozenset[int]:
    ends = config.eos_token_id
    return frozenset() if ends is None else frozenset([ends] if isinstance(ends, int) else ends)


class _Row:
    """One answer while it grows. Tokens come from the generating thread, everything else is the talker's."""

    def __init__(self, prepared: Prepared, listener: Listener, speaker: Speaker, ends: frozenset[int]) -> None:
        self.options = prepared.question.options
        self.done = False
        self.listener = listener
        self._prepared = prepared
        self._speaker = speaker
        self._ends = ends
        self._maker = PieceMaker(speaker.decode, self.options.stop, without_tags=speaker.without_tags)
        self._taken = 0
        self._tokens: list[int] = []
        self._told = False

    def take(self, token: int) -> tuple[int | None, str]:
        """(the token if it is one of the answer, why the answer ends with it if it does)."""
        if token in self._ends:
            self.done = True
            return None, "stop"
        self._taken += 1
        if self._taken < self._prepared.max_new_tokens:
            return token, ""  # and `done` is left alone: the talker may have set it meanwhile
        self.done = True
        return token, "length"

    def tell(self, token: int | None, reason: str) -> None:
        """Lets the listener have what is certain now."""
        if self._told:
            return
        if self.listener.is_gone():
            self.done = self._told = True
            return
        text = ""
        if token is not None:
            self._tokens.append(token)
            text = self._maker.add(token)
            if self._maker.stopped:
                reason = "stop"
        if reason:
            self.done = self._told = True
            text += self._maker.end()
        if text:
            self.listener.piece(text)
        if reason:
            entities = self._speaker.entities(self._prepared.question, self._tokens)
            self.listener.end(Ending(reason, self._prepared.length, len(self._tokens), entities))


class _Talker:
    """A thread that turns tokens into text and sends it, so that the next token need not wait for that."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.rows = rows
        self._news: queue.SimpleQueue[tuple[_Row, int | None, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="vlm-talker", daemon=True)

    def say(self, row: _Row, token: int | None, reason: str) -> None:
        self._news.put((row, token, reason))

    def take(self, tokens: Sequence[int]) -> bool:
        """The next token of each row; whether all rows have ended."""
        for row, token in zip(self.rows, tokens, strict=True):
            if not row.done:
                self.say(row, *row.take(token))
        return all(row.done for row in self.rows)

    def _run(self) -> None:
        while (news := self._news.get()) is not None:
            row, token, reason = news
            try:
                row.tell(token, reason)
            except Exception:
                log.exception("an answer cannot be passed on")
                row.done = True

    def __enter__(self) -> _Talker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._news.put(None)
        self._thread.join()


class _Take(BaseStreamer):  # type: ignore[misc]
    """Gets [B] tokens at a time; the first call has the prompts."""

    def __init__(self, talker: _Talker) -> None:
        self._talker = talker
        self._began = False

    def put(self, value: torch.Tensor) -> None:
        if not self._began:
            self._began = True
            return
        self._talker.take(value.reshape(-1).tolist())

    def end(self) -> None:
        """The talker ends with its block."""


class _Done(StoppingCriteria):  # type: ignore[misc]
    """[B]: which rows have ended, for whatever reason."""

    def __init__(self, rows: Sequence[_Row]) -> None:
        self._rows = rows

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.tensor([row.done for row in self._rows], dtype=torch.bool, device=input_ids.device)


class _Draw:
    """Draws the tokens of one row, from its own generator."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._random = torch.Generator()
        if options.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(options.seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """[V] -> a token."""
        numbers = logits.double().cpu()  # from the likeliest on, or a tiny temperature would make infinities
        chances = torch.softmax((numbers - numbers.max()) / self._options.temperature, dim=-1)
        ordered, tokens = chances.sort(descending=True)
        # The likeliest token stays in whatever top_p is: what comes before it has no probability.
        ordered[ordered.cumsum(-1) - ordered >= self._options.top_p] = 0.0
        return int(tokens[torch.multinomial(ordered, 1, generator=self._random)])


class _DrawRows(LogitsProcessor):  # type: ignore[misc]
    """Leaves only the drawn token possible in rows that are drawn; ``generate`` takes the likeliest of every row."""

    def __init__(self, draws: Sequence[_Draw | None]) -> None:
        self._draws = draws

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for row, draw in enumerate(self._draws):
            if draw is not None:
                token = draw(scores[row])
                scores[row] = -torch.inf
                scores[row, token] = 0.0
        return scores
