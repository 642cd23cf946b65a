"""The process that compiles an engine's steps: ``python -m`` this module, started by :mod:`.compiling`.

It reads a request from standard input and writes a line for each step to standard output. When standard input ends, as
it does when the parent ends in whatever way, it ends with everything that it has started.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pydantic import JsonValue, TypeAdapter

from triton_sam.core.concepts.traits import ConceptTraits
from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.models.architecture import Architecture
from triton_sam.models.specs import Graphs

#: Names of steps; the encoder's is followed by the number of images, the decoder's and the grid's by that of rows.
ENCODER, DECODER, GRID = "encoder-", "decoder-", "grid-"
PACKING, RESIZING, MEASURING = "packing", "resizing", "measuring"
#: Followed by the number of objects; and the kernels, which that needs.
TRACKING, TRACKING_KERNELS = "tracking-", "tracking_kernels"
#: Followed by the number of texts, and of concepts of an image, without examples and with; and what they all need.
TEXT, CONCEPTS, EXAMPLES, CONCEPT_IMAGE = "text-", "concepts-", "examples-", "concept_image"
#: A file system that does not answer must not keep this process alive; the next one that compiles sweeps too.
_SWEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """What to compile.

    Attributes:
        dtype, row_dtype: names of torch's dtypes, of the encoder and of the rest.
        mode: of torch.compile.
        steps: names of steps, in the order in which they are needed.
        root, key: of the :class:`CodeFolder`.
    """

    architecture: Architecture
    graphs: Graphs
    memory: MemoryTraits | None
    device: str
    dtype: str
    row_dtype: str
    mode: str
    steps: tuple[str, ...]
    root: Path
    key: dict[str, JsonValue]
    concepts: ConceptTraits | None = None

    def to_line(self) -> bytes:
        """As the process reads it."""
        return _REQUEST.dump_json(self) + b"\n"


_REQUEST = TypeAdapter(CompileRequest)


def main() -> None:
    """Compiles what is missing. The argument is the descriptor of the folder's lock, which this process shares."""
    os.set_inheritable(int(sys.argv[1]), False)  # the lock ends with this process, not with a compiler that it starts
    os.umask(0o077)
    os.setpgid(0, 0)
    request = _REQUEST.validate_json(sys.stdin.buffer.readline())
    folder = CodeFolder(request.root, request.key)
    threading.Thread(target=_end_with_parent, args=(folder,), name="parent", daemon=True).start()
    with _own_output() as output:
        compile_missing(request, folder, lambda step: print(step, file=output, flush=True))


def _end_with_parent(folder: CodeFolder) -> None:
    """When the parent ends, kills this process and those that it has started, which the kernel would not do."""
    while os.read(0, 1):  # not sys.stdin, whose lock would be missed when Python ends
        pass
    sweeper = threading.Thread(target=folder.sweep, daemon=True)
    sweeper.start()
    sweeper.join(_SWEEP_SECONDS)
    os.killpg(os.getpid(), signal.SIGKILL)


def compile_missing(request: CompileRequest, folder: CodeFolder, done: Callable[[str], object]) -> None:
    """Compiles the steps that another process has not compiled meanwhile; calls ``done`` with each one's name."""
    missing = []
    for step in request.steps:
        if folder.find(step) is None:
            missing.append(step)
        else:
            done(step)
    if not missing:
        return
    from triton_sam.engines.torch.step_compiler import StepCompiler  # torch takes seconds

    compiler = StepCompiler(request)
    for step in missing:
        with folder.writing(step) as new:
            compiler.compile_step(step, new)
        done(step)


@contextmanager
def _own_output() -> Iterator[TextIO]:
    """Standard output for us alone: what libraries and compilers print goes to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        yield output


if __name__ == "__main__":
    main()
