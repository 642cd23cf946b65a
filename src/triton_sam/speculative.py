"""The public name of the speculative client; it lives in ``triton_sam.client.speculative``."""

from triton_sam.client.speculative import (
    SessionStatus,
    SpeculativeSAM2Client,
    queue_multiple_requests,
    wait_for_latest_result,
)

__all__ = ["SessionStatus", "SpeculativeSAM2Client", "queue_multiple_requests", "wait_for_latest_result"]
