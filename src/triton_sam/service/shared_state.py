"""What the processes of one service share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from triton_sam.service.admission.capacity import Tally
from triton_sam.service.rate_limits import Buckets
from triton_sam.service.routes.embedding_models import EmbeddingModels
from triton_sam.service.siblings import Siblings


@dataclass(frozen=True, slots=True)
class SharedState:
    """The default is a service of one process, which shares nothing.

    Attributes:
        tally: the counts behind the limits on requests, bodies, sockets and connections.
        buckets: of callers and of addresses, behind the rate limits.
        metrics_folder: of the values of all processes' metrics.
    """

    tally: Tally | None = None
    buckets: tuple[Buckets, Buckets] | None = None
    siblings: Siblings = field(default_factory=Siblings)
    embedding_models: EmbeddingModels = field(default_factory=EmbeddingModels)
    metrics_folder: Path | None = None
