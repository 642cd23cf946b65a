"""The segmenter's own figures on Triton's metrics port."""

from __future__ import annotations

import threading
from typing import Any

import triton_python_backend_utils as pb_utils

_COUNTERS = {
    "encodes": "Images encoded",
    "decodes": "Prompts decoded",
    "cancelled": "Requests cancelled or superseded before they were computed",
    "rejected": "Requests refused because a queue was full",
    "cache_hits": "Requests whose embedding was cached",
    "cache_misses": "Requests whose embedding was not cached",
}


class TritonMetrics:
    """``triton_sam_<name>_total`` and ``triton_sam_cache_bytes``, labelled by model."""

    def __init__(self, model: str) -> None:
        # Families must outlive their metrics, so they are kept beside them.
        self._families: list[Any] = []
        self._lock = threading.Lock()
        labels = {"model": model}
        self._metrics: dict[str, Any] = {
            name: self._family(f"triton_sam_{name}_total", text, pb_utils.MetricFamily.COUNTER).Metric(labels=labels)
            for name, text in _COUNTERS.items()
        }
        gauge = self._family("triton_sam_cache_bytes", "Bytes of cached embeddings", pb_utils.MetricFamily.GAUGE)
        self._metrics["cache_bytes"] = gauge.Metric(labels=labels)

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
