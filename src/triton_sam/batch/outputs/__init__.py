"""The files that a batch job writes: some with each result, some at the end."""

from triton_sam.batch.outputs.choosing import (
    ITEM_OUTPUTS,
    OUTPUTS,
    ItemWriter,
    check_outputs,
    make_writers,
)
from triton_sam.batch.outputs.facts import FailureGroup, JobFacts
from triton_sam.batch.outputs.labels import LABEL_FORMATS
from triton_sam.batch.outputs.merge import write_outputs
from triton_sam.batch.outputs.statistics import Statistics

__all__ = [
    "ITEM_OUTPUTS",
    "LABEL_FORMATS",
    "OUTPUTS",
    "FailureGroup",
    "ItemWriter",
    "JobFacts",
    "Statistics",
    "check_outputs",
    "make_writers",
    "write_outputs",
]
