"""Words on a GPU at full size with random weights: against transformers, step by step, and served end to end.

usage: python -m benchmarks.concepts_device FOLDER [PART ...] [options]

FOLDER holds, or gets, the weights and the compiled code. For the part ``servers`` it also holds the repositories'
configs and the backend's files, which ``repository`` writes on a machine with everything installed. Parts, in their
order; one that fails, or takes longer than its limit, does not end the others:

  repository   writes what the servers need and is not random
  compile      starts to compile all steps, in other processes
  weights      writes the random network, with words and without
  servers      starts two servers, which warm up meanwhile: one with words, one without
  equal        instances of the engine against transformers, in float32 and in what is served, uncompiled
  compiled     waits for compiled code, uses it in this process, and compares again
  transformers the reference: eager, in bfloat16, and its times
  bare         times of the compiled engine in this process: new images, new texts, known ones, clicks
  served       times through tritonserver and HTTP, with words and without, and the GPU's memory

Figures are printed as JSON, one line each, in milliseconds. 30 instances come back as packed bits.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.concepts_compare import NO_BOXES, Found, Reference, answered, candidates, differences, prompts
from benchmarks.concepts_limits import within
from benchmarks.concepts_model import as_transformers, concept_spec, random_network, write_tokenizer, write_version
from benchmarks.concepts_served import Served
from benchmarks.concepts_steps import compile_request, steps
from benchmarks.device_scale import milliseconds, say, timed
from triton_sam.bench.machine import gpu_bytes
from triton_sam.bench.pictures import Pictures, fresh_numbers
from triton_sam.core.concepts.request import ConceptPrompt
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Embedding, Row
from triton_sam.engines.concepts import ConceptRow
from triton_sam.engines.tokenizing import TextTokenizer
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.engines.torch.compiling import cache_variables
from triton_sam.engines.torch.devices import choose_dtypes
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.engines.torch.switches import switches
from triton_sam.models.specs import NETWORK_FILE
from triton_sam.settings import Settings

#: Part -> seconds that it may take.
PARTS = {
    "compile": 10.0,
    "weights": 40.0,
    "servers": 10.0,
    "equal": 70.0,
    "compiled": 125.0,
    "transformers": 25.0,
    "bare": 30.0,
    "served": 75.0,
}
_INSTANCES = 30
#: Of the part ``compiled``, to use the code and to compare.
_SWITCHING_SECONDS = 30.0
#: Milliseconds at most.
BARS = {"new image, new text": 32.0, "new text": 14.0, "known text": 10.0}


class Bench:
    """A network, and what it is measured with."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.folder: Path = given.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.device = torch.device(given.device)
        self.on_gpu = given.device == "cuda"
        self.rounds: int = given.rounds
        self.spec = concept_spec(small=given.small)
        self.dtypes = choose_dtypes(Settings(device="auto" if self.on_gpu else "cpu"), self.device, self.spec)
        image = os.environ.get("SCALE_IMAGE")
        self.pictures = Pictures() if image is None else Pictures(Path(image))
        self.network = random_network(self.spec, self.device)
        self.tokenizer = TextTokenizer(write_tokenizer(self.folder), 32)
        self._numbers = fresh_numbers()
        self._texts = fresh_numbers()
        self.compiler: subprocess.Popen[bytes] | None = None
        self.running: Served | None = None
        self.engine: TorchEngine | None = None
        #: By kind of prompt: what transformers finds in float32.
        self.known: dict[str, Found] = {}
        torch_version, card = torch.__version__, torch.cuda.get_device_name() if self.on_gpu else "CPU"
        say(model=self.spec.id, picture=self.pictures.about, dtype=str(self.dtypes[0]), torch=torch_version, on=card)

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def image(self) -> EncodedImage:
        """One that is new to a server."""
        return EncodedImage(self.pictures.jpeg(next(self._numbers)), max_bytes=2**24, max_pixels=2**24)

    def new_text(self) -> str:
        """One that nobody has read."""
        return f"red thing {next(self._texts)}"

    def made_engine(self, *, exact: bool = False) -> TorchEngine:
        """In float32 without graphs, or as it is served before anything is compiled."""
        dtypes = (torch.float32, torch.float32) if exact else self.dtypes
        mode = "default" if self.on_gpu and not exact else None
        options = TorchOptions(self.device, *dtypes, compile_mode=mode, graphs=not exact)
        begun = time.perf_counter()
        network = copy.deepcopy(self.network).cpu()  # as it is loaded; its layers become the engine's
        engine = TorchEngine(self.spec, network, options, self.tokenizer)
        engine.warm_up()
        self.wait()
        say(engine=str(dtypes[0]), ready_s=round(time.perf_counter() - begun, 1), **self.memory())
        return engine

    def memory(self) -> dict[str, int]:
        """MiB of this process's tensors."""
        return {"tensors_mib": torch.cuda.memory_allocated() >> 20} if self.on_gpu else {}

    def timed(self, what: str, action: Callable[[int], object]) -> None:
        """Prints how long something takes, everything on the device included."""

        def whole(number: int) -> None:
            action(number)
            self.wait()

        timed(whole, 3)
        say(bare=what, ms=milliseconds(timed(whole, self.rounds)))

    # -- parts -----------------------------------------------------------------------------------------------

    def weights(self) -> None:
        words = write_version(self.folder, self.spec, self.network)
        clicks = concept_spec(small=self.given.small, concepts=False)
        write_version(self.folder / "clicks", clicks, self.network)
        say(weights_gb=round((words / NETWORK_FILE).stat().st_size / 1e9, 2))

    def compile(self) -> None:
        command = [sys.executable, "-m", "benchmarks.concepts_steps", str(self.folder), "--device", self.given.device]
        self.compiler = subprocess.Popen([*command, *(["--small"] if self.given.small else [])])

    def servers(self) -> None:
        for folder in (self.folder, self.folder / "clicks"):
            folder.chmod(0o755)
        os.environ["TRITON_SAM_HOME"] = str(self.folder / "home")
        self.running = Served(self.folder, self.folder / "clicks", self.pictures)

    def equal(self) -> None:
        """All candidates of each kind of prompt, and an answer."""
        tf32 = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        reference = Reference(as_transformers(self.network, self.spec, self.device), self.tokenizer)
        exact = self.made_engine(exact=True)
        prepared = exact.prepare(self.image())
        (embedding,) = exact.encode([prepared])
        asked = prompts(embedding.frame)
        self.known = {kind: reference.find(prepared.pixels, one, embedding.frame) for kind, one in asked.items()}
        self.compare("float32", exact, embedding)
        torch.backends.cudnn.allow_tf32 = tf32
        del exact, embedding
        if self.on_gpu:
            reference.model.to(torch.bfloat16)
            for kind, one in asked.items():
                found = reference.find(prepared.pixels, one, prepared.frame)
                say(equal="transformers in bfloat16", prompt=kind, **differences(found, self.known[kind], _INSTANCES))
        del reference
        self.engine = self.made_engine()
        self.compare("served, uncompiled", self.engine)

    def compare(self, numbers: str, engine: TorchEngine, embedding: Embedding | None = None) -> None:
        if embedding is None:
            (embedding,) = engine.encode([engine.prepare(self.image())])
        asked = prompts(embedding.frame)
        for kind, one in asked.items():
            (found,) = candidates(engine, embedding, [one])
            say(equal=numbers, prompt=kind, **differences(found, self.known[kind], _INSTANCES))
        for kind, found in zip(asked, candidates(engine, embedding, list(asked.values())), strict=True):
            say(equal=numbers, prompt=f"{kind}, of three", **differences(found, self.known[kind], _INSTANCES))
        answer = answered(engine, embedding, asked["text"], self.known["text"], _INSTANCES)
        say(equal=numbers, answer=answer)

    def compiled(self) -> None:
        """Uses the code as the engine itself does."""
        if self.compiler is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.compiler.wait(PARTS["compiled"] * self.given.patience - _SWITCHING_SECONDS)
            say(all_compiled=self.compiler.poll() == 0)
        engine = self.engine = self.engine or self.made_engine()
        request = compile_request(self.folder, self.spec, self.device)
        folder = CodeFolder(request.root, request.key)
        os.environ.update(cache_variables(folder))
        used = switches(engine)
        begun = time.perf_counter()
        refused = {}
        for step in steps(self.given.device):
            place = folder.find(step)
            try:
                if place is None:
                    refused[step] = "not compiled"
                elif step in used:
                    used[step](place)
            except TimeoutError:
                raise
            except Exception as error:  # one step must not end the others
                refused[step] = str(error)[:300]
        say(switched_s=round(time.perf_counter() - begun, 1), refused=refused, **self.memory())
        if self.known:
            self.compare("served, compiled", engine)

    def transformers(self) -> None:
        half = torch.bfloat16 if self.on_gpu else torch.float32
        model = as_transformers(self.network, self.spec, self.device).to(half)
        ids, mask = Reference(model, self.tokenizer).tokens("red thing")
        pixels = torch.rand(1, 3, self.spec.side, self.spec.side, device=self.device).to(half)
        given = {"input_ids": ids, "attention_mask": mask}
        with torch.inference_mode():
            vision = model.get_vision_features(pixels)
            self.timed("transformers: all", lambda _: model(pixel_values=pixels, **given))
            self.timed("transformers: vision", lambda _: model.get_vision_features(pixels))
            self.timed("transformers: text", lambda _: model.get_text_features(**given))
            self.timed("transformers: text and detector", lambda _: model(vision_embeds=vision, **given))

    def bare(self) -> None:
        engine = self.engine = self.engine or self.made_engine()

        def encoded() -> Embedding:
            return engine.encode([engine.prepare(self.image())])[0]

        def find(embedding: Embedding, *texts: str, boxes: Any = NO_BOXES) -> None:
            labels = np.ones(len(boxes), np.int32)
            rows = [
                ConceptRow(embedding, ConceptPrompt(text, boxes, labels), -1.0, _INSTANCES, logits=False, pixels=True)
                for text in texts
            ]
            for one in engine.begin_concepts(rows)():
                assert one.decoded.packed is not None
                assert len(one.decoded.packed) == _INSTANCES

        image, other = encoded(), encoded()
        boxes = prompts(image.frame)["examples"].boxes
        point = ObjectPrompt(np.full((1, 2), 64, np.float32), np.ones(1, np.int32))
        click = Row(image, point, logits=False, pixels=True)
        self.timed("image", lambda _: encoded())
        self.timed("new image, new text", lambda _: find(encoded(), self.new_text()))
        self.timed("new text", lambda _: find(image, self.new_text()))
        self.timed("known text", lambda number: find((image, other)[number % 2], "coin"))
        self.timed("known text, the same image as before", lambda _: find(image, "coin"))
        self.timed("four known texts", lambda _: find(image, "red", "blue", "coin", "spoon"))
        self.timed("two examples", lambda _: find(image, "coin", boxes=boxes))
        self.timed("click", lambda _: engine.decode([click]))
        say(bytes_of_an_image=image.nbytes, **self.memory())

    def served(self) -> None:
        assert self.running is not None
        self.running.measure(self.rounds, _INSTANCES, BARS, self.given.wait)
        if self.on_gpu:
            self.running.clicks.stop()
            time.sleep(1)
            before = gpu_bytes() or 0
            self.running.words.stop()
            time.sleep(1)
            say(server_with_words_mib=(before - (gpu_bytes() or 0)) >> 20)

    def close(self) -> None:
        if self.running is not None:
            self.running.stop()
        if self.compiler is not None:
            self.compiler.kill()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", help=", ".join(("repository", *PARTS)))
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--small", action="store_true", help="a network that a CPU can run, for a try")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--wait", type=float, default=40.0, help="how long a server may take to full speed, seconds")
    parser.add_argument("--patience", type=float, default=1.0, help="multiplies the limits of all parts")
    parser.add_argument("--seconds", type=float, default=3600.0, help="all parts together take no longer")
    given = parser.parse_args()
    ends = time.monotonic() + given.seconds
    if "repository" in given.parts:
        from benchmarks.concepts_served import write_repository

        write_repository(given.folder, concept_spec(small=given.small))
        write_repository(given.folder / "clicks", concept_spec(small=given.small, concepts=False))
    own = [part for part in PARTS if part in (given.parts or PARTS)]
    if not own:
        return
    bench = Bench(given)
    try:
        for part in own:
            begun = time.monotonic()
            try:
                with within(min(PARTS[part] * given.patience, ends - begun)):
                    getattr(bench, part)()
            except (Exception, SystemExit) as error:  # the other parts are worth their time
                traceback.print_exc(limit=-4)
                say(failed=part, why=f"{type(error).__name__}: {error}"[:500])
            gc.collect()
            if bench.on_gpu:
                torch.cuda.empty_cache()
            say(part=part, seconds=round(time.monotonic() - begun, 1), left=round(ends - time.monotonic()))
    finally:
        bench.close()


if __name__ == "__main__":
    main()
