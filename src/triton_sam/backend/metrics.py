"""The models' own figures on Triton's metrics port."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

_SEGMENTER_COUNTERS = {
    "encodes": "Images encoded",
    "decodes": "Prompts decoded",
    "cancelled": "Requests cancelled or superseded before they were computed",
    "rejected": "Requests refused because a queue was full",
    "cache_hits": "Requests whose embedding was cached",
    "cache_misses": "Requests whose embedding was not cached",
}
_SEGMENTER_GAUGES = {"cache_bytes": "Bytes of cached embeddings"}
VLM_COUNTERS = {
    "vlm_questions": "Questions that were answered or begun",
    "vlm_batches": "Batches in which they were",
    "vlm_tokens": "Tokens generated",
    "vlm_loads": "Times that the model was loaded",
    "vlm_unloads": "Times that it was unloaded",
    "vlm_rejected": "Questions refused because the queue was full or the wait too long",
}


class TritonMetrics:
    """Counters ``triton_sam_<name>_total`` and gauges ``triton_sam_<name>``, labelled by model."""

    def __init__(
        self,
        model: str,
        counters: Mapping[str, str] = _SEGMENTER_COUNTERS,
        gauges: Mapping[str, str] = _SEGMENTER_GAUGES,
    ) -> None:
        """
        Args:
            counters, gauges: name -> what it counts.
        """
        # Families must outlive their metrics, so they are kept beside them.
        self._families: list[Any] = []
        self._lock = threading.Lock()
        labels = {"model": model}
        self._metrics: dict[str, Any] = {
            name: self._family(f"triton_sam_{name}_total", text, pb_utils.MetricFamily.COUNTER).Metric(labels=labels)
            for name, text in counters.items()
        } | {
            name: self._family(f"triton_sam_{name}", text, pb_utils.MetricFamily.GAUGE).Metric(labels=labels)
            for name, text in gauges.items()
        }

    def _family(self, name: str, description: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name=name, description=description, kind=kind)
        self._families.append(family)
        return family

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter."""
        with self._lock:
            self._metrics[name].increment(amount)

    def set(self, name: str, value: float) -> None:
        """Sets a gauge."""
        with self._lock:
            self._metrics[name].set(value)
