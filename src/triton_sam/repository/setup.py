"""Sets up one model: downloads its files, converts or exports them, and writes the model repository."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.installation import install_extra
from triton_sam.models.architecture import Backbone
from triton_sam.models.checksums import checksum_file, matches_checksum, write_checksum
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import (
    CONCEPT_FILES,
    CONCEPT_GRAPHS,
    CPU_DECODER_FILE,
    CPU_ENCODER_FILE,
    DECODER_FILE,
    EIGHT_BIT_ENCODER_FILE,
    ENCODER_FILE,
    GRAPHS_FILE,
    MEMORY_FILE,
    MEMORY_GRAPHS,
    NETWORK_FILE,
    EngineChoice,
    Graphs,
    ModelSpec,
    Role,
    exported_graphs,
    graphs_from_json,
)
from triton_sam.models.weights import ProgressFactory, WeightStore, silent
from triton_sam.repository.assembling import assemble_graphs
from triton_sam.repository.cpu_notes import DECODER_NOTE, ENCODER_NOTE, write_note
from triton_sam.repository.export_cache import ExportRequest, Say, export_model, forget_exports, write_network
from triton_sam.repository.segmenters import choose_name, find_segmenters, remove_models, write_models
from triton_sam.repository.tokenizer_file import add_tokenizer

#: In the cached decoder's file name; raise it when export/cpu_decoder.py writes another graph.
_DECODER_RECIPE = 1
#: Files of parts that not every model has.
_PARTS = (*MEMORY_GRAPHS, MEMORY_FILE, *CONCEPT_GRAPHS, *CONCEPT_FILES)


@dataclasses.dataclass(frozen=True, slots=True)
class SetupRequest:
    """One model to set up, and how."""

    spec: ModelSpec
    store: WeightStore
    repository: Path
    progress: ProgressFactory = silent
    export: ExportRequest = dataclasses.field(default_factory=ExportRequest)
    """Options of the export; ready-made graphs are used only if it asks for nothing else."""
    make_default: bool = False
    """Whether to give the model its family's name, whichever model has that now."""
    engine: EngineChoice = EngineChoice.AUTO
    cpu_encoder: bool = False
    """Whether to add the encoder that is rewritten for CPUs, with the same masks."""
    fast_encoder: bool = False
    """Whether to add the encoder for CPUs that is partly in 8 bits, which changes masks."""
    fast_decoder: bool = False
    """Whether to add the decoder for CPUs, which answers a click sooner."""
    say: Say = lambda _: None
    """Called with one line for each step."""

    @property
    def ready_made(self) -> bool:
        """Whether ready-made graphs exist and satisfy the request."""
        return self.spec.ready_made and self.export.is_plain

    @property
    def assembled(self) -> bool:
        """Whether the graphs can be put together without an export."""
        return self.spec.assembly is not None and self.export.is_plain and self.export.seed is None

    @property
    def converted(self) -> Path:
        """The cache folder of graphs that are made from ready-made ones."""
        return self.store.home / "converted"


def set_up(request: SetupRequest) -> list[str]:
    """Makes a model ready to serve and returns the Triton names that were written.

    Graphs that are ready-made, or put together of such, are used if there are any and the request asks for nothing
    else; otherwise the model is exported.
    """
    engine = request.engine
    if engine is EngineChoice.AUTO:
        engine = EngineChoice.TORCH if not request.ready_made and _has_gpu() else EngineChoice.ONNX
    if engine is EngineChoice.TORCH_ONLY:
        return _set_up_torch_only(request)
    if request.assembled:
        return _set_up_assembled(request, with_torch=engine is EngineChoice.TORCH)
    if engine is EngineChoice.TORCH or not request.ready_made:
        return _set_up_exported(request, with_torch=engine is EngineChoice.TORCH)
    return _set_up_ready_made(request)


def _set_up_torch_only(request: SetupRequest) -> list[str]:
    spec, side = request.spec, request.export.image_size or request.spec.side
    network = write_network(spec, request.store, request.export, request.progress, request.say)
    served = dataclasses.replace(spec, graphs=exported_graphs(spec.architecture, side))
    name = choose_name(spec, request.repository, request.make_default)
    _say_if_without_memory(request, network.parent)
    _add_tokenizer(request, network.parent)
    return write_models(served, None, None, request.repository, name=name, extras=_for_torch(network))


def _for_torch(network: Path) -> dict[str, Path]:
    """The weights for torch, and the descriptions beside them: of a memory, and of what finds concepts."""
    return {NETWORK_FILE: network} | _present(network.parent, MEMORY_FILE, *CONCEPT_FILES)


def _add_tokenizer(request: SetupRequest, folder: Path) -> None:
    add_tokenizer(request.spec, folder, request.export.checkpoint, request.store, request.progress, request.say)


def _present(folder: Path, *names: str) -> dict[str, Path]:
    return {name: folder / name for name in names if (folder / name).is_file()}


def _say_if_without_memory(request: SetupRequest, folder: Path) -> None:
    if request.spec.architecture.generation in MEMORY_TRAITS and not (folder / MEMORY_FILE).is_file():
        request.say(
            f"{request.spec.id} takes images but no videos: these weights have no memory, as Meta's checkpoints have"
        )


def _set_up_exported(request: SetupRequest, *, with_torch: bool) -> list[str]:
    arguments = request.spec, request.store, request.export, request.progress
    folder, _ = export_model(*arguments, say=request.say)
    _say_if_without_memory(request, folder)
    _add_tokenizer(request, folder)
    return write_exported(
        request.spec,
        folder,
        request.repository,
        make_default=request.make_default,
        network=write_network(*arguments, request.say) if with_torch else None,
        cpu_encoder=request.cpu_encoder,
        fast_decoder=request.fast_decoder,
        say=request.say,
    )


def _set_up_assembled(request: SetupRequest, *, with_torch: bool) -> list[str]:
    spec, say = request.spec, request.say
    folder = assemble_graphs(spec, request.store, request.progress, say)
    encoder, decoder = folder / ENCODER_FILE, folder / DECODER_FILE
    extras = _present(folder, *_PARTS)
    if with_torch:
        try:
            extras[NETWORK_FILE] = write_network(spec, request.store, request.export, request.progress, say)
        except SetupError as error:
            if request.engine is not EngineChoice.AUTO:
                raise
            say(f"it runs on ONNX Runtime: {error}")
    if request.cpu_encoder and spec.architecture.backbone is Backbone.HIERA:
        extras |= _cpu_encoder(spec, encoder, folder, say)
    if request.fast_decoder:
        target = folder / f"{decoder.stem}-cpu{_DECODER_RECIPE}.onnx"
        extras |= _cpu_decoder(spec.graphs, decoder, target, say, keep=True)
    name = choose_name(spec, request.repository, request.make_default)
    return write_models(spec, encoder, decoder, request.repository, name=name, extras=extras)


def _set_up_ready_made(request: SetupRequest) -> list[str]:
    try:
        from triton_sam.export.ort_to_onnx import as_onnx
        from triton_sam.export.raw_contract import write_contract_pair
    except ImportError:
        raise SetupError(f"onnxruntime is not installed: {install_extra('server')}") from None
    spec, converted, say = request.spec, request.converted, request.say
    files = request.store.pull(spec, request.progress)
    encoder, decoder = (as_onnx(files[role], converted) for role in (Role.ENCODER, Role.DECODER))
    raw = write_contract_pair(spec, encoder, decoder, converted)
    extras: dict[str, Path] = {}
    if request.cpu_encoder:
        extras |= _cpu_encoder(spec, encoder, converted, say)
    if request.fast_encoder:
        extras |= _cpu_encoder(spec, encoder, converted, say, eight_bits=True)
    if request.fast_decoder:
        target = converted / f"{decoder.stem}-cpu{_DECODER_RECIPE}.onnx"
        extras |= _cpu_decoder(spec.graphs, decoder, target, say, keep=True)
    name = choose_name(spec, request.repository, request.make_default)
    return write_models(spec, encoder, decoder, request.repository, name=name, extras=extras, raw=raw)


def _cpu_encoder(
    spec: ModelSpec, encoder: Path, folder: Path, say: Say, *, eight_bits: bool = False
) -> dict[str, Path]:
    """The encoder rewritten for CPUs, made once; empty, with a note, if it cannot be made: the plain one serves too.

    Args:
        eight_bits: only for ready-made graphs, whose masks have been compared on photographs.
    """
    try:
        from triton_sam.export.cpu_encoder import RECIPE, make_cpu_encoder

        target = folder / f"{encoder.stem}-cpu{RECIPE}{'-8bit' if eight_bits else ''}.onnx"
        if _made_once(target, lambda: make_cpu_encoder(encoder, target, spec.graphs, say, eight_bits=eight_bits)):
            return {EIGHT_BIT_ENCODER_FILE if eight_bits else CPU_ENCODER_FILE: target}
    except Exception as error:  # an unforeseen graph must not stop the set-up: the plain one serves too
        return _noted(
            ENCODER_NOTE, folder / f"{encoder.stem}.txt", f"the plain encoder is served: {_text_of(error)}", say
        )
    return {}


def _cpu_decoder(graphs: Graphs, decoder: Path, target: Path, say: Say, *, keep: bool) -> dict[str, Path]:
    """The decoder rewritten for CPUs; empty, with a note, if it cannot be made: the plain one serves too.

    Args:
        keep: reuses a ``target`` that was made before; its name must identify the decoder.
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
        return _noted(DECODER_NOTE, note, f"the plain decoder is served: {_text_of(error)}", say)
    return {}


def _noted(name: str, note: Path, why: str, say: Say) -> dict[str, Path]:
    """Reports why a graph is served as it is, and keeps the reason for ``doctor``."""
    say(why)
    return {name: note} if write_note(note, why) else {}


def _made_once(target: Path, make: Callable[[], Path | None]) -> bool:
    """Whether the file exists intact, from before or made now; False if ``make`` has nothing to make."""
    if matches_checksum(target):
        return True
    if make() is None:
        return False
    write_checksum(target)
    return True


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, SetupError) else f"{type(error).__name__}: {error}"


def set_up_random(spec: ModelSpec, repository: Path) -> list[str]:
    """Sets up a model with random weights at full size, for torch only: for benchmarks that do not need real masks."""
    try:
        from triton_sam.export.network_file import write_random_network
    except ImportError as error:
        raise SetupError(f"random weights need {error.name}: {install_extra('export')}") from None
    served = dataclasses.replace(spec, graphs=exported_graphs(spec.architecture, spec.side))
    with tempfile.TemporaryDirectory(prefix="triton-sam-random-") as folder:
        network = write_random_network(served, Path(folder) / NETWORK_FILE)
        return write_models(served, None, None, repository, name=spec.family, extras=_for_torch(network))


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
    cpu_encoder: bool = False,
    fast_decoder: bool = False,
    say: Say = lambda _: None,
) -> list[str]:
    """Writes an exported model to a repository and returns the Triton names that were written.

    Args:
        folder: what an export leaves: ``encoder.onnx``, ``decoder.onnx``, their external data, ``graphs.json`` and the
            files of a memory and of what finds concepts.
        make_default: gives the model its family's name, whichever model has that now.
        network: the same weights for torch.
        cpu_encoder: adds the encoder for CPUs, beside the plain one, if the network is one that it can be made of.
        fast_decoder: adds the decoder for CPUs, beside the plain one.
    """
    description, encoder, decoder = (folder / name for name in (GRAPHS_FILE, ENCODER_FILE, DECODER_FILE))
    try:
        graphs = graphs_from_json(description.read_bytes())
    except OSError as error:
        raise SetupError(
            f"{folder} is not an export ({description.name}: {error.strerror}): export the model there"
        ) from None
    except ValueError:
        raise SetupError(f"{description} is damaged: export the model again") from None
    for graph in (encoder, decoder):
        if not graph.is_file():
            raise SetupError(f"{folder} is not a complete export, {graph.name} is missing: export the model again")
    served = dataclasses.replace(spec, graphs=graphs)
    extras = _present(folder, *_PARTS) | ({} if network is None else {NETWORK_FILE: network})
    if cpu_encoder and spec.architecture.backbone is Backbone.HIERA:
        extras |= _cpu_encoder(served, encoder, folder, say)
    if fast_decoder:
        extras |= _cpu_decoder(graphs, decoder, folder / CPU_DECODER_FILE, say, keep=False)
    name = choose_name(spec, repository, make_default)
    return write_models(served, encoder, decoder, repository, name=name, extras=extras)


def uninstall(spec: ModelSpec, store: WeightStore, repository: Path) -> int:
    """Removes a model's files, conversions, exports and repository folders; returns the bytes that are free again.

    Those that another model in the repository is made of stay.
    """
    remove_models(spec, repository)
    freed = store.remove(spec, {found.id for found in find_segmenters(repository).values()})
    converted = store.home / "converted"
    for file in (file for file in spec.files if not store.path(file).exists()):
        stem = store.path(file).stem
        made_of_it = (path for pattern in ("-cpu*", "-raw*") for path in converted.glob(f"{stem}{pattern}.onnx"))
        for made in (converted / f"{stem}.onnx", *made_of_it):
            made.unlink(missing_ok=True)
            checksum_file(made).unlink(missing_ok=True)
            made.with_suffix(".txt").unlink(missing_ok=True)
    return freed + forget_exports(spec, store)
