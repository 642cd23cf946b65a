"""Worker processes: one for each device of a segmenter, behind the Triton processes that parse and format.

A worker owns engine, scheduler, embedding cache and sessions (:class:`~triton_sam.backend.core.LocalCore`). The Triton
processes reach it over a Unix socket; images and masks go through shared memory. From outside: ``WorkerCore`` of
``remote_core`` and ``python -m triton_sam.backend.workers.process``. No Triton here.
"""
