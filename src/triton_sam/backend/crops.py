"""Parts of images that everything mode encodes on their own."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future

from triton_sam.backend.jobs import SegmentJob
from triton_sam.core.everything.driver import Progress
from triton_sam.core.everything.grids import CropBox
from triton_sam.core.images import EncodedImage, file_bytes
from triton_sam.engines.base import Decoded, Embedding
from triton_sam.errors import InternalError, TritonSamError


class _CropReply:
    """Hands the embedding of a crop to who waits for it."""

    def __init__(self, of: SegmentJob) -> None:
        self._of = of
        self.embedding: Future[Embedding] = Future()

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        assert job.embedding is not None
        self.embedding.set_result(job.embedding)

    def found(self, job: SegmentJob, progress: Progress) -> None:
        raise InternalError("a crop is only encoded")

    def flush(self) -> None:
        """Nothing is held back."""

    def fail(self, error: TritonSamError) -> None:
        self.embedding.set_exception(error)

    def is_cancelled(self) -> bool:
        return self._of.reply.is_cancelled()


def crop_job(job: SegmentJob, crop: CropBox) -> tuple[SegmentJob, EncodedImage, Future[Embedding]]:
    """A request to encode a part of a job's image, the part, and its embedding to come.

    Args:
        crop: x0, y0, x1, y1 in original pixels.
    """
    assert job.image is not None  # checked when the request was taken
    data = file_bytes(job.image.pixels().crop(crop))
    image = EncodedImage(data, max_bytes=len(data), max_pixels=job.image.size[0] * job.image.size[1])
    box = ",".join(str(side) for side in crop)
    key = hashlib.sha256(f"{job.image_key}\0{box}".encode()).hexdigest()[: len(job.image_key)]
    reply = _CropReply(job)
    part = SegmentJob(reply, None, key, job.session, sequence=job.sequence, request_id=job.request_id)
    part.background = job.background
    return part, image, reply.embedding
