"""The models' own counters and gauges on Triton's metrics port."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

log = logging.getLogger(__name__)
#: How long changes are collected before they are reported to Triton.
REPORT_SECONDS = 0.05

#: Processes that told Triton about metrics from several threads at once have crashed.
_telling_triton = threading.Lock()

_SEGMENTER_COUNTERS = {
    "encodes": "Images encoded",
    "decodes": "Prompts decoded",
    "cancelled": "Requests cancelled or superseded before they were computed",
    "rejected": "Requests refused because a queue was full",
    "turns": "Requests whose turn came: images encoded for them, or prompts of theirs decoded",
    "queue_microseconds": "Time that requests waited for their turn",
    "background_encodes": "Images encoded for background requests only",
    "background_decodes": "Prompts of background requests decoded",
    "background_rejected": "Background requests refused because a queue was full",
    "background_turns": "Background requests whose turn came, not counted in turns",
    "background_queue_microseconds": "Time that background requests waited for their turn",
    "cache_hits": "Requests whose embedding was cached",
    "cache_misses": "Requests whose embedding was not cached",
    "concepts": "Concepts that were looked for in an image",
    "concept_instances": "Instances of concepts that were found",
    "concept_microseconds": "Time that looking for concepts took",
    "video_frames": "Frames of videos that were tracked",
    "video_rows": "Objects that were tracked or prompted in frames of videos",
    "video_expired": "Video sessions that ended because they were idle, or were dropped for others",
}
_SEGMENTER_GAUGES = {
    "cache_bytes": "Bytes of cached embeddings",
    "video_sessions": "Open video sessions",
    "video_bytes": "Bytes of the memories of videos and of their frames that wait",
}
_DEVICE_COUNTERS = {"device_encodes": "Images encoded on a device", "device_decodes": "Prompts decoded on a device"}
_DEVICE_GAUGES = {
    "device_cache_bytes": "Bytes of cached embeddings of a device",
    "device_ready": "Whether the worker of a device has loaded the model: 1 or 0",
}
VLM_COUNTERS = {
    "vlm_questions": "Questions that were answered or begun",
    "vlm_batches": "Batches of questions",
    "vlm_tokens": "Tokens generated",
    "vlm_loads": "Times that the model was loaded",
    "vlm_unloads": "Times that the model was unloaded",
    "vlm_rejected": "Questions refused because the queue was full or the wait too long",
}


class TritonMetrics:
    """Counters ``triton_sam_<name>_total`` and gauges ``triton_sam_<name>``, labelled by model."""

    def __init__(
        self,
        model: str,
        counters: Mapping[str, str] = _SEGMENTER_COUNTERS,
        gauges: Mapping[str, str] = _SEGMENTER_GAUGES,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            counters, gauges: name -> description.
            labels: besides the model.
        """
        # Families must outlive their metrics.
        self._families: list[Any] = []
        labels = {"model": model, **(labels or {})}
        with _telling_triton:
            self._metrics: dict[str, Any] = {
                name: self._family(f"triton_sam_{name}_total", text, pb_utils.MetricFamily.COUNTER).Metric(
                    labels=labels
                )
                for name, text in counters.items()
            } | {
                name: self._family(f"triton_sam_{name}", text, pb_utils.MetricFamily.GAUGE).Metric(labels=labels)
                for name, text in gauges.items()
            }
        self._counts: Counter[str] = Counter()
        self._levels: dict[str, float] = {}
        self._awake = False
        self._changed = threading.Condition()
        self._begun = False

    def begin(self) -> None:
        """Starts to report. Not while a model is initialised: processes have crashed then."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._report_loop, name="metrics", daemon=True).start()

    def _family(self, name: str, description: str, kind: Any) -> Any:
        family = pb_utils.MetricFamily(name=name, description=description, kind=kind)
        self._families.append(family)
        return family

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter; reported to Triton a moment later."""
        with self._changed:
            self._counts[name] += amount
            self._wake()

    def set(self, name: str, value: float) -> None:
        """Sets a gauge; reported to Triton a moment later."""
        with self._changed:
            self._levels[name] = value
            self._wake()

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._changed.notify()

    def _report_loop(self) -> None:
        """Reports changes in groups: each report is a round trip to Triton, which costs a fifth of a click."""
        while True:
            with self._changed:
                while not self._awake:
                    self._changed.wait()
            time.sleep(REPORT_SECONDS)
            with self._changed:
                self._awake = False
                counts, self._counts = self._counts, Counter()
                levels, self._levels = self._levels, {}
            try:
                with _telling_triton:
                    for name, amount in counts.items():
                        self._metrics[name].increment(amount)
                    for name, value in levels.items():
                        self._metrics[name].set(value)
            except Exception:  # an error in a metric must not end this thread
                log.exception("reporting %s to Triton failed", ", ".join([*counts, *levels]))


class WorkerMetrics:
    """Metrics of a model's workers: for each device, and as sums under the names of a model without workers.

    Several processes of a model have these metrics, and Triton adds their counts up. Workers report to the first one.
    """

    def __init__(self, model: str, devices: Sequence[str]) -> None:
        self._model = TritonMetrics(model)
        self._devices = [
            TritonMetrics(model, _DEVICE_COUNTERS, _DEVICE_GAUGES, {"device": f"{index}:{device}"})
            for index, device in enumerate(devices)
        ]
        #: Gauge -> its value on each device.
        self._levels = {name: [0.0] * len(devices) for name in _SEGMENTER_GAUGES}

    def begin(self) -> None:
        """Starts to report; see :meth:`TritonMetrics.begin`."""
        for metrics in (self._model, *self._devices):
            metrics.begin()

    def device_counts(self, index: int, counts: dict[str, int], levels: dict[str, float]) -> None:
        """Counts and gauges of one device, as its worker reports them."""
        for name, amount in counts.items():
            self._model.count(name, amount)
            if f"device_{name}" in _DEVICE_COUNTERS:
                self._devices[index].count(f"device_{name}", amount)
        for name, value in levels.items():
            self._set(name, index, value)

    def device_changed(self, index: int, ready: bool) -> None:
        """A device was lost, with its cache and its videos, or is back."""
        self._devices[index].set("device_ready", float(ready))
        if not ready:
            for name in self._levels:
                self._set(name, index, 0.0)

    def _set(self, name: str, index: int, value: float) -> None:
        self._levels[name][index] = value
        if f"device_{name}" in _DEVICE_GAUGES:
            self._devices[index].set(f"device_{name}", value)
        self._model.set(name, sum(self._levels[name]))
