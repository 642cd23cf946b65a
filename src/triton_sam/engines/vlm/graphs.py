"""Decode steps of LLaVA over fixed buffers, so that a CUDA graph can replay one in a single launch.

``generate`` launches a thousand kernels per token from Python, and the GPU waits for it most of the time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers

log = logging.getLogger(__name__)
_cuda: Any = torch.cuda  # only partly typed
#: Rows and slots for which graphs are captured; a batch takes the smallest that hold it.
BATCHES = (1, 2, 4, 8)
LENGTHS = (1024, 2048, 4096)
#: Share of the GPU's free memory that the buffers may take: prompts and the other lane need memory too.
_SHARE = 0.5
_WARM_UPS = 3
_INPUTS = {"input_ids", "attention_mask", "pixel_values"}
#: RoPE types without Python code that depends on positions: a graph would capture its first result for good.
_STEADY_ROPES = {"default", "linear", "llama3", "yarn"}
#: Generation options of a checkpoint that do not change which token is the likeliest.
_HARMLESS = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "max_length", "max_new_tokens", "transformers_version"),
    *("do_sample", "temperature", "top_p", "top_k", "num_beams", "_from_model_config"),
}
_NEUTRAL: Mapping[str, Any] = {
    "use_cache": True,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "num_return_sequences": 1,
}


def can_step(network: Any) -> bool:
    """Whether these steps generate what ``generate`` would; False in doubt."""
    if not isinstance(network, transformers.LlavaForConditionalGeneration):
        return False
    language = network.model.language_model
    if not isinstance(language, transformers.LlamaModel):
        return False
    options = network.generation_config.to_diff_dict()
    return (
        language.config._attn_implementation in ("sdpa", "eager")
        and getattr(language.rotary_emb, "rope_type", None) in _STEADY_ROPES
        and all(name in _HARMLESS or (name in _NEUTRAL and options[name] == _NEUTRAL[name]) for name in options)
    )


class Storage:
    """Memory for the keys and values of one batch at a time. A batch of any shape that fits uses its beginning.

    Attributes:
        slots: rows x length that fit.
        pool: memory pool of the graphs over this memory. It is dropped with them: torch cannot reuse a pool whose last
            graph is gone.
    """

    def __init__(self, network: Any, slots: int, *, on_gpu: bool) -> None:
        self.slots = slots
        self.layers, self.heads, self.width = _sizes(network)
        numbers = slots * self.heads * self.width
        like = {"dtype": network.dtype, "device": network.device}
        self._flat = [(torch.empty(numbers, **like), torch.empty(numbers, **like)) for _ in range(self.layers)]
        self.pool = torch.cuda.graph_pool_handle() if on_gpu else None

    def views(self, batch: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values [B,H,L,D] of each layer."""
        shape = (batch, self.heads, length, self.width)
        count = batch * self.heads * length * self.width
        return [(keys[:count].view(shape), values[:count].view(shape)) for keys, values in self._flat]


class SlotCache:
    """A key-value cache for Llama's forward: ``update`` writes to the slot that a tensor names and returns all slots.

    The caller passes mask and positions to the network, so nothing here depends on lengths.
    """

    is_compileable = True
    is_sliding = (False,)

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], slot: torch.Tensor) -> None:
        self._layers = layers
        self._slot = slot

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[B,H,1,D] twice -> [B,H,L,D] twice."""
        all_keys, all_values = self._layers[layer_idx]
        all_keys.index_copy_(2, self._slot, keys)
        all_values.index_copy_(2, self._slot, values)
        return all_keys, all_values

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return self.get_max_cache_shape()

    def get_max_cache_shape(self, *_: Any, **__: Any) -> int:
        return int(self._layers[0][0].shape[2])

    def get_query_offset(self, *_: Any, **__: Any) -> int:
        return self.get_max_cache_shape()

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self.get_max_cache_shape(), 0


class DecodeSteps:
    """Decodes the rows of one bucket, token by token. Call it under ``torch.inference_mode``, as its buffers need.

    Attributes:
        tokens: [B,1], the likeliest next tokens. Overwrite them to feed others into the next step.
        logits: [B,V], float32, of the last step.
    """

    def __init__(self, network: Any, storage: Storage, batch: int, length: int) -> None:
        self._network = network
        self._layers = storage.views(batch, length)
        device = network.device
        vocabulary = int(network.lm_head.out_features)
        self.tokens = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.logits = torch.zeros(batch, vocabulary, dtype=torch.float32, device=device)
        self._positions = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self._slot = torch.zeros(1, dtype=torch.long, device=device)
        self._closed = torch.finfo(network.dtype).min
        self._mask = torch.full((batch, 1, 1, length), self._closed, dtype=network.dtype, device=device)
        self._open = torch.zeros(batch, 1, 1, 1, dtype=network.dtype, device=device)
        self._cache = SlotCache(self._layers, self._slot)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._host_tokens = torch.zeros(batch, 1, dtype=torch.long, pin_memory=device.type == "cuda")
        self._copied = _cuda.Event() if device.type == "cuda" else None

    def capture(self, pool: Any) -> None:
        """Captures a step as a CUDA graph: from now on it is one launch. Overwrites the buffers."""
        for keys, values in self._layers:
            keys.zero_()
            values.zero_()
        stream = _cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries initialise in their first calls, which must not be captured
            for _ in range(_WARM_UPS):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # The other lane keeps running: only calls of this thread may invalidate the capture.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._compute()
        self._graph = graph

    def prefill(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Reads the questions [R,T], padded on the left, R <= B. Rows beyond R are computed and ignored.

        ``tokens`` and ``logits`` are those after the last token of each question.
        """
        attention = inputs["attention_mask"]
        rows, length = attention.shape
        places = (attention.cumsum(-1) - 1).clamp(min=0)
        output = self._network(**inputs, position_ids=places, use_cache=True, logits_to_keep=1)
        for (keys, values), layer in zip(self._layers, output.past_key_values.layers, strict=True):
            # An earlier batch may have left NaNs, which stay NaN even with an attention weight of zero.
            keys.zero_()
            values.zero_()
            keys[:rows, :, :length].copy_(layer.keys)
            values[:rows, :, :length].copy_(layer.values)
        self._mask.fill_(self._closed)
        self._mask[:rows, 0, 0, :length].masked_fill_(attention.bool(), 0.0)
        self._slot.fill_(length)
        self._positions.zero_()
        self._positions[:rows, 0].copy_(attention.sum(-1))
        self.logits[:rows].copy_(output.logits[:, -1])
        self.tokens.copy_(self.logits.argmax(-1, keepdim=True))

    def advance(self) -> None:
        """Reads ``tokens`` and computes the next ``logits`` and ``tokens``; asynchronous on a GPU."""
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()

    def send(self) -> None:
        """Starts to copy the current ``tokens`` to the CPU. The next step may begin before the copy ends."""
        self._host_tokens.copy_(self.tokens, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def receive(self) -> list[int]:
        """[B] tokens of the last :meth:`send`."""
        if self._copied is not None:
            self._copied.synchronize()
        return [int(token) for token in self._host_tokens[:, 0].tolist()]

    def _compute(self) -> None:
        """One step. All state that changes between steps is in tensors, because a graph replays only those."""
        self._mask.index_copy_(3, self._slot, self._open)
        output = self._network.model.language_model(
            input_ids=self.tokens,
            attention_mask=self._mask,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        self.logits.copy_(self._network.lm_head(output.last_hidden_state[:, -1]))
        self.tokens.copy_(self.logits.argmax(-1, keepdim=True))
        self._positions.add_(1)
        self._slot.add_(1)


class StepDecoder:
    """The decode steps of a network, created at first use and lent to one batch at a time.

    All other batches use ``generate``.
    """

    def __init__(
        self,
        network: Any,
        *,
        batches: Sequence[int] = BATCHES,
        lengths: Sequence[int] = LENGTHS,
        max_bytes: int | None = None,
        capture: bool = True,
    ) -> None:
        """
        Args:
            max_bytes: limit of the buffers: the memory that was reserved for this model beside its weights.
            capture: False runs without a GPU, for tests.
        """
        context = int(network.config.get_text_config().max_position_embeddings)
        self._network = network
        self._batches = tuple(batches)
        self._lengths = tuple(sorted({min(length, context) for length in lengths}))
        self._capture = capture
        self._max_bytes = 2**62 if max_bytes is None else max_bytes
        self._lock = threading.Lock()
        self._storage: Storage | None = None
        self._steps: dict[tuple[int, int], DecodeSteps] = {}
        self._limit = 2**62  # slots that did not fit into memory

    @contextmanager
    def borrow(self, inputs: Mapping[str, torch.Tensor], count: int) -> Iterator[DecodeSteps | None]:
        """Steps that have read the questions and have room for ``count`` more tokens; None if none are available.

        Args:
            inputs: [R,T] tokens and mask, padded on the left, and the images.
        """
        rows, length = inputs["input_ids"].shape
        bucket = self._bucket(rows, length + count)
        if bucket is None or set(inputs) != _INPUTS or not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            yield self._prefilled(bucket, inputs)
        finally:
            self._lock.release()

    def _bucket(self, rows: int, length: int) -> tuple[int, int] | None:
        batch = next((size for size in self._batches if size >= rows), None)
        slots = next((size for size in self._lengths if size >= length), None)
        if batch is None or slots is None or batch * slots >= self._limit:
            return None
        return batch, slots

    @torch.inference_mode()
    def _prefilled(self, bucket: tuple[int, int], inputs: Mapping[str, torch.Tensor]) -> DecodeSteps | None:
        steps = self._steps.get(bucket) or self._made(bucket)
        if steps is not None:
            try:
                steps.prefill(inputs)
            except torch.OutOfMemoryError:  # most likely used by the other lane: only this batch is decoded slowly
                log.warning("not enough GPU memory to read %d questions in CUDA graphs", inputs["input_ids"].shape[0])
                return None
        return steps

    def _made(self, bucket: tuple[int, int]) -> DecodeSteps | None:
        """New steps. None if they cannot be made, which is not tried again."""
        try:
            return self._make(*bucket)
        except torch.OutOfMemoryError:
            self._limit = bucket[0] * bucket[1]
            log.warning("not enough GPU memory for CUDA graphs of %d x %d tokens: such batches are slow", *bucket)
        except RuntimeError:
            self._limit = 0
            log.warning("decode steps cannot run as CUDA graphs here: decoding is slow", exc_info=True)
        self._drop()  # after the handlers, or the error's frames would keep the memory
        return None

    def _make(self, batch: int, length: int) -> DecodeSteps | None:
        """New steps; None if they would take too much memory."""
        if self._storage is None or self._storage.slots < batch * length:
            # Allocate for the widest batch at once if that fits: growing later means capturing all graphs again.
            sizes = sorted({batch * length, max(batch * length, self._batches[-1] * self._lengths[0])}, reverse=True)
            slots = next((size for size in sizes if self._is_room(size)), None)
            if slots is None:
                return None
            self._drop()
            self._storage = Storage(self._network, slots, on_gpu=self._capture)
        steps = DecodeSteps(self._network, self._storage, batch, length)
        if self._capture:
            steps.capture(self._storage.pool)
        self._steps[batch, length] = steps
        return steps

    def _is_room(self, slots: int) -> bool:
        layers, heads, width = _sizes(self._network)
        slot = 2 * layers * heads * width * self._network.dtype.itemsize
        if not self._capture or slots * slot > self._max_bytes:
            return bool(slots * slot <= self._max_bytes)
        more = slots - (self._storage.slots if self._storage is not None else 0)
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        free = torch.cuda.mem_get_info()[0] + unused
        return bool(slot * more <= free * _SHARE)

    def _drop(self) -> None:
        self._steps.clear()
        self._storage = None
        if self._capture:
            torch.cuda.empty_cache()


def _sizes(network: Any) -> tuple[int, int, int]:
    """(layers, key heads, head dimension)."""
    config = network.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(config.num_hidden_layers), int(config.num_key_value_heads), int(width)
