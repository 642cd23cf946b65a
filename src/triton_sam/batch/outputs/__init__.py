"""The files that a batch job writes: some with each result, some at the end."""

from triton_sam.batch.outputs.choosing import OUTPUTS, check_outputs, make_writers
from triton_sam.batch.outputs.facts import FailureGroup, JobFacts
from triton_sam.batch.outputs.merge import write_outputs

__all__ = ["OUTPUTS", "FailureGroup", "JobFacts", "check_outputs", "make_writers", "write_outputs"]
