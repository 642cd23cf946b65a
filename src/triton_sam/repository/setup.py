"""From a model's id, or an export, to a model repository: pull, convert where needed, write."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.models.checksums import is_whole, seal_of, write_seal
from triton_sam.models.specs import (
    CPU_DECODER_FILE,
    CPU_ENCODER_FILE,
    DECODER_FILE,
    EIGHT_BIT_ENCODER_FILE,
    ENCODER_FILE,
    GRAPHS_FILE,
    NETWORK_FILE,
    EngineChoice,
    Graphs,
    ModelSpec,
    Role,
    exported_graphs,
    graphs_from_json,
)
from triton_sam.models.weights import ProgressFactory, WeightStore, silent
from triton_sam.repository.cpu_notes import DECODER_NOTE, ENCODER_NOTE, write_note
from triton_sam.repository.export_cache import ExportRequest, Say, export_model, forget_exports, write_network
from triton_sam.repository.segmenters import choose_name, remove_models, write_models

#: In the name of the rewritten decoder that is kept; to be raised when export/cpu_decoder.py makes another graph.
_DECODER_RECIPE = 1


def set_up(
    spec: ModelSpec,
    store: WeightStore,
    repository: Path,
    progress: ProgressFactory | None = None,
    *,
    request: ExportRequest | None = None,
    make_default: bool = False,
    engine: EngineChoice = EngineChoice.AUTO,
    cpu_encoder: bool = False,
    fast_encoder: bool = False,
    fast_decoder: bool = False,
    say: Say = lambda _: None,
) -> list[str]:
    """Makes ``spec`` ready to serve and returns the Triton names that were written.

    Ready-made graphs are taken where there are any and the request asks for nothing else; else the model is exported.

    Args:
        make_default: gives it its family's name, whichever model has that now.
        cpu_encoder: also makes the encoder that is rewritten for CPUs, with the same masks.
        fast_encoder: also makes the encoder that is partly in 8 bits, for CPUs, which changes masks.
        fast_decoder: also makes the decoder that answers a click sooner, for CPUs.
    """
    request = request or ExportRequest()
    progress = progress or silent
    ready_made = bool(spec.files) and request.is_plain
    if engine is EngineChoice.AUTO:
        engine = EngineChoice.TORCH if not ready_made and _has_gpu() else EngineChoice.ONNX
    if engine is EngineChoice.TORCH_ONLY:
        network = write_network(spec, store, request, progress, say)
        served = dataclasses.replace(spec, graphs=exported_graphs(spec.architecture, request.image_size or spec.side))
        name = choose_name(spec, repository, make_default)
        return write_models(served, None, None, repository, name=name, extras={NETWORK_FILE: network})
    if engine is EngineChoice.TORCH or not ready_made:
        folder, _ = export_model(spec, store, request, progress, say=say)
        torch_weights = write_network(spec, store, request, progress, say) if engine is EngineChoice.TORCH else None
        return write_exported(
            spec,
            folder,
            repository,
            make_default=make_default,
            network=torch_weights,
            fast_decoder=fast_decoder,
            say=say,
        )
    try:
        from triton_sam.export.ort_to_onnx import as_onnx
        from triton_sam.export.raw_contract import write_contract_pair
    except ImportError:
        raise SetupError("onnxruntime is not installed: pip install 'triton-sam[server]'") from None
    files = store.pull(spec, progress)
    converted = store.home / "converted"
    encoder, decoder = (as_onnx(files[role], converted) for role in (Role.ENCODER, Role.DECODER))
    raw = write_contract_pair(spec, encoder, decoder, converted)
    extras: dict[str, Path] = {}
    if cpu_encoder:
        extras |= _cpu_encoder(spec, encoder, converted, say)
    if fast_encoder:
        extras |= _cpu_encoder(spec, encoder, converted, say, eight_bits=True)
    if fast_decoder:
        target = converted / f"{decoder.stem}-cpu{_DECODER_RECIPE}.onnx"
        extras |= _cpu_decoder(spec.graphs, decoder, target, say, keep=True)
    name = choose_name(spec, repository, make_default)
    return write_models(spec, encoder, decoder, repository, name=name, extras=extras, raw=raw)


def _cpu_encoder(
    spec: ModelSpec, encoder: Path, folder: Path, say: Say, *, eight_bits: bool = False
) -> dict[str, Path]:
    """An encoder that runs faster on a CPU, made once; nothing where it cannot be made: the plain one serves too.

    Only of ready-made graphs, whose masks have been compared on photographs.
    """
    try:
        from triton_sam.export.cpu_encoder import RECIPE, make_cpu_encoder

        target = folder / f"{encoder.stem}-cpu{RECIPE}{'-8bit' if eight_bits else ''}.onnx"
        if _made_once(target, lambda: make_cpu_encoder(encoder, target, spec.graphs, say, eight_bits=eight_bits)):
            return {EIGHT_BIT_ENCODER_FILE if eight_bits else CPU_ENCODER_FILE: target}
    except Exception as error:  # whatever a graph has that nobody thought of: the plain one is there
        return _noted(ENCODER_NOTE, folder / f"{encoder.stem}.txt", f"the plain encoder is served: {_told(error)}", say)
    return {}


def _cpu_decoder(graphs: Graphs, decoder: Path, target: Path, say: Say, *, keep: bool) -> dict[str, Path]:
    """The decoder as it runs fastest on a CPU; nothing where it cannot be made: the plain one serves too.

    Args:
        keep: takes ``target`` as it is where it was made before; its name must tell of which decoder it is.
    """
    try:
        from triton_sam.export.cpu_decoder import make_cpu_decoder

        def make() -> Path | None:
            return make_cpu_decoder(decoder, target, graphs, say)

        is_there = _made_once(target, make) if keep else make() is not None
        if is_there:
            return {CPU_DECODER_FILE: target}
    except Exception as error:  # as above
        note = target.with_name(f"{decoder.stem}.txt")
        return _noted(DECODER_NOTE, note, f"the plain decoder is served: {_told(error)}", say)
    return {}


def _noted(name: str, note: Path, why: str, say: Say) -> dict[str, Path]:
    """Says why a graph is served as it is, and keeps it for ``doctor``."""
    say(why)
    return {name: note} if write_note(note, why) else {}


def _made_once(target: Path, make: Callable[[], Path | None]) -> bool:
    """Whether the file is there, as it was made before or made now; False where there is nothing to be made."""
    if is_whole(target):
        return True
    if make() is None:
        return False
    write_seal(target)
    return True


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, SetupError) else f"{type(error).__name__}: {error}"


def set_up_random(spec: ModelSpec, repository: Path) -> list[str]:
    """A model with random weights at full size, for torch alone: what is measured does not depend on the weights."""
    try:
        from triton_sam.export.network_file import write_random_network
    except ImportError as error:
        raise SetupError(f"random weights need {error.name}: pip install 'triton-sam[export]'") from None
    served = dataclasses.replace(spec, graphs=exported_graphs(spec.architecture, spec.side))
    with tempfile.TemporaryDirectory(prefix="triton-sam-random-") as folder:
        network = write_random_network(served, Path(folder) / NETWORK_FILE)
        return write_models(served, None, None, repository, name=spec.family, extras={NETWORK_FILE: network})


def _has_gpu() -> bool:
    """Whether torch is installed and sees a CUDA device."""
    try:
        from triton_sam.export.gpu_check import has_gpu
    except ImportError:
        return False
    return has_gpu()


def write_exported(
    spec: ModelSpec,
    folder: Path,
    repository: Path,
    *,
    make_default: bool = False,
    network: Path | None = None,
    fast_decoder: bool = False,
    say: Say = lambda _: None,
) -> list[str]:
    """Writes an exported model to a repository and returns the Triton names that were written.

    Args:
        folder: what an export leaves: ``encoder.onnx``, ``decoder.onnx``, their external data and ``graphs.json``.
        make_default: gives it its family's name, whichever model has that now.
        network: the same weights for torch.
        fast_decoder: also makes the decoder for CPUs, beside the plain one.
    """
    description, encoder, decoder = (folder / name for name in (GRAPHS_FILE, ENCODER_FILE, DECODER_FILE))
    try:
        graphs = graphs_from_json(description.read_bytes())
    except OSError as error:
        raise SetupError(
            f"{folder} is no export ({description.name}: {error.strerror}): export the model there"
        ) from None
    except ValueError:
        raise SetupError(f"{description} is damaged: export the model again") from None
    for graph in (encoder, decoder):
        if not graph.is_file():
            raise SetupError(f"{folder} is no whole export, {graph.name} is missing: export the model again")
    served = dataclasses.replace(spec, graphs=graphs)
    extras = {} if network is None else {NETWORK_FILE: network}
    if fast_decoder:
        extras |= _cpu_decoder(graphs, decoder, folder / CPU_DECODER_FILE, say, keep=False)
    name = choose_name(spec, repository, make_default)
    return write_models(served, encoder, decoder, repository, name=name, extras=extras)


def tear_down(spec: ModelSpec, store: WeightStore, repository: Path) -> int:
    """Removes a model's files, conversions and repository folders; returns the bytes of the removed files."""
    converted = store.home / "converted"
    for file in spec.files:
        stem = store.path(file).stem
        made_of_it = (path for pattern in ("-cpu*", "-raw*") for path in converted.glob(f"{stem}{pattern}.onnx"))
        for made in (converted / f"{stem}.onnx", *made_of_it):
            made.unlink(missing_ok=True)
            seal_of(made).unlink(missing_ok=True)
            made.with_suffix(".txt").unlink(missing_ok=True)
    remove_models(spec, repository)
    return store.remove(spec) + forget_exports(spec, store)
