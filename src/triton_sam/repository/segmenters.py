"""ModelSpec -> Triton model repository. Written from the catalogue or an export, never by hand.

For each model three folders: the segmenter and the plain graphs, which also run in NVIDIA's container. The default
model of a family has the family's name (``sam2``, ``sam2_encoder``, ``sam2_decoder``), every other its own
(``sam2.1_large``, ...). Folders for foreign tools ("profiles") stand beside them and are left alone.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.models.catalog import CATALOG
from triton_sam.models.specs import (
    CPU_DECODER_FILE,
    CPU_ENCODER_FILE,
    DECODER_FILE,
    EIGHT_BIT_ENCODER_FILE,
    ENCODER_FILE,
    EXTERNAL_DATA_SUFFIX,
    GRAPHS_FILE,
    NETWORK_FILE,
    OLD_EIGHT_BIT_ENCODER_FILE,
    ModelSpec,
    graphs_to_json,
    raw_graphs,
)
from triton_sam.repository.configs import (
    GRAPH_OF,
    MODEL_ID,
    PROFILE,
    Tensor,
    config_text,
    decoder_config,
    encoder_config,
    parameters_of,
    plain_config,
    raw_names,
    renamed,
    segmenter_config,
)
from triton_sam.repository.model_folders import (
    Files,
    Workshop,
    holds,
    newest_version,
    read_config,
    served_spec,
    writing,
)

log = logging.getLogger(__name__)

_EXTRAS = (CPU_ENCODER_FILE, EIGHT_BIT_ENCODER_FILE, OLD_EIGHT_BIT_ENCODER_FILE, CPU_DECODER_FILE, NETWORK_FILE)
_SEGMENTER_SOURCE = '''"""Written by `triton-sam setup`; the code lives in the triton_sam package."""

from triton_sam.backend.segmenter import TritonPythonModel  # noqa: F401
'''

# -- what stands there ----------------------------------------------------------------------------------------


def find_segmenters(repository: Path) -> dict[str, ModelSpec]:
    """Triton name -> catalogue row, with the graphs of the newest version, of the segmenters in a repository."""
    found = {}
    for name, parameters in models_in(repository):
        row = CATALOG.get(parameters.get(MODEL_ID, ""))
        if row is not None:
            folder = repository / name
            try:
                found[name] = served_spec(row, folder / str(newest_version(folder)))
            except SetupError as error:
                log.warning("%s is left out: %s", name, error)
    return found


def find_profile_models(repository: Path) -> list[str]:
    """Triton names of the folders that were written for foreign tools."""
    return [name for name, parameters in models_in(repository) if PROFILE in parameters]


def find_name(spec: ModelSpec, repository: Path) -> str | None:
    """The Triton name of a model's segmenter; the family's name first where it has several, None where it has none."""
    names = [name for name, parameters in models_in(repository) if parameters.get(MODEL_ID) == spec.id]
    preferred = (spec.family, spec.variant_name)
    return min(names, key=lambda name: preferred.index(name) if name in preferred else len(preferred), default=None)


def models_in(repository: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """(folder, parameters of its config) of every folder with a config that can be read."""
    for config_file in sorted(repository.glob("*/config.pbtxt")):
        name = config_file.parent.name
        parameters = None if name.startswith(".") else parameters_at(repository, name)
        if parameters is not None:
            yield name, parameters


def parameters_at(repository: Path, name: str) -> dict[str, str] | None:
    """The parameters of a folder's config; None where there is none to read."""
    text = read_config(repository / name)
    return None if text is None else parameters_of(text)


def is_current(spec: ModelSpec, repository: Path) -> bool:
    """Whether the repository holds the model as this version of the code would write it.

    Graphs that a user exported are what they say they are; ready-made ones must be those of ``spec``.
    """
    name = find_name(spec, repository)
    if name is None:
        return False
    version = newest_version(repository / name)
    served = _acceptable(spec, repository / name / str(version))
    if served is None:
        return False
    configs = _configs(served, name, _as_raw(served))
    if not _has_graphs(repository / name / str(version)):
        configs = {name: configs[name]}
    return all(
        read_config(repository / folder) == config and newest_version(repository / folder) == version
        for folder, config in configs.items()
        if not _is_profile(repository, folder)
    )


def refresh(spec: ModelSpec, repository: Path) -> bool:
    """Writes a model anew from the graphs in its own segmenter; False where it must be set up from its sources."""
    name = find_name(spec, repository)
    if name is None:
        return False
    newest = repository / name / str(newest_version(repository / name))
    served = _acceptable(spec, newest)
    if served is None:
        return False
    extras = {extra: newest / extra for extra in _EXTRAS if (newest / extra).is_file()}
    if not _has_graphs(newest):
        write_models(served, None, None, repository, name=name, extras=extras)
        return True
    graphs = newest / ENCODER_FILE, newest / DECODER_FILE
    from triton_sam.export.raw_contract import write_contract_pair

    with tempfile.TemporaryDirectory(prefix="triton-sam-raw-") as folder:
        try:
            raw = write_contract_pair(served, *graphs, Path(folder))
        except SetupError as error:
            log.warning("%s is set up anew: %s", spec.id, error)
            return False
        write_models(served, *graphs, repository, name=name, extras=extras, raw=raw)
    return True


def is_exported(spec: ModelSpec, repository: Path) -> bool:
    """Whether the model that stands there was exported, and not written from ready-made graphs."""
    name = find_name(spec, repository)
    found = None if name is None else _acceptable(spec, repository / name / str(newest_version(repository / name)))
    return found is not None and found.graphs.exported


def has_file(spec: ModelSpec, repository: Path, file: str) -> bool:
    """Whether the newest version of a model has a file of this name."""
    name = find_name(spec, repository)
    return name is not None and (repository / name / str(newest_version(repository / name)) / file).is_file()


def _acceptable(spec: ModelSpec, version_folder: Path) -> ModelSpec | None:
    """The model as a version has it; None where that is not whole, or ready-made and not as ``spec`` says."""
    if not (_has_graphs(version_folder) or (version_folder / NETWORK_FILE).is_file()):
        return None
    try:
        served = served_spec(spec, version_folder)
    except SetupError:
        return None
    return served if served.graphs.exported or served.graphs == spec.graphs else None


def _has_graphs(version_folder: Path) -> bool:
    return all((version_folder / graph).is_file() for graph in (ENCODER_FILE, DECODER_FILE))


# -- names ----------------------------------------------------------------------------------------------------


def choose_name(spec: ModelSpec, repository: Path, make_default: bool = False) -> str:
    """The Triton name under which a model stands or shall stand in a repository.

    It keeps the name that it has; a new one gets its family's name where that is free, else its own.

    Args:
        make_default: it takes its family's name, and the model that had it is renamed to its own.
    """
    own = find_name(spec, repository)
    if own is not None and (own == spec.family or not make_default):
        return own
    holder = parameters_at(repository, spec.family)
    if (repository / spec.family).exists() and (holder is None or MODEL_ID not in holder):
        raise _strange(spec.family, repository)
    if holder is not None and not make_default:
        return spec.variant_name
    if holder is not None:
        _rename(spec.family, holder[MODEL_ID].replace(":", "_"), repository)
    if own is not None:
        _rename(own, spec.family, repository)
    return spec.family


def _rename(old: str, new: str, repository: Path) -> None:
    """Gives a segmenter and its plain twins another name; nothing is gone before all of it stands there again."""
    pairs = [
        (here, there)
        for here, there in zip((old, *raw_names(old)), (new, *raw_names(new)), strict=True)
        if (repository / here).exists() and not _is_profile(repository, here)
    ]
    model_id = (parameters_at(repository, old) or {}).get(MODEL_ID)
    for _, there in pairs:
        parameters = parameters_at(repository, there) or {}
        ours = model_id in (parameters.get(MODEL_ID), parameters.get(GRAPH_OF)) or PROFILE in parameters
        if (repository / there).exists() and not ours:
            raise _strange(there, repository)
    with writing(repository) as workshop:
        for here, there in pairs:
            if not _is_profile(repository, there):
                workshop.copy_model(here, there, renamed(read_config(repository / here) or "", there))
        for here, _ in pairs:
            workshop.remove_model(here)


def _is_profile(repository: Path, name: str) -> bool:
    return PROFILE in (parameters_at(repository, name) or {})


def _strange(name: str, repository: Path) -> SetupError:
    return SetupError(
        f"{repository} has a folder {name} that triton-sam did not write: move it away, or choose another repository"
    )


# -- writing --------------------------------------------------------------------------------------------------


def write_models(
    spec: ModelSpec,
    encoder: Path | None,
    decoder: Path | None,
    repository: Path,
    *,
    name: str | None = None,
    extras: Mapping[str, Path] | None = None,
    raw: tuple[Path, Path] | None = None,
) -> list[str]:
    """Writes a model's three folders, or the segmenter alone, and returns the names of those that are its own.

    Files other than those of the newest version become the next version; the same files change only the configs.

    Args:
        encoder, decoder: ONNX files as ``spec.graphs`` describes them; linked into the repository, or copied between
            file systems. External data stand beside them, as ``encoder.onnx_data`` and ``decoder.onnx_data``. None
            for a model that runs on torch alone.
        name: of the segmenter; :func:`choose_name` by default.
        extras: further files of the segmenter's version under their names there: the weights for torch, the encoders
            and the decoder for CPUs.
        raw: the plain encoder and decoder as :func:`~triton_sam.models.specs.raw_graphs` describes them, of
            :func:`~triton_sam.export.raw_contract.write_contract_pair`; None where ``encoder`` and ``decoder`` are
            these, or shall be served as they are.
    """
    extras = extras or {}
    _check_present(*(graph for graph in (encoder, decoder, *(raw or ())) if graph is not None), *extras.values())
    name = name or choose_name(spec, repository)
    _refuse_strangers(spec, name, repository)
    encoder_name, decoder_name = raw_names(name)
    files: dict[str, Files] = {}
    graphs: dict[str, Path] = {}
    if encoder is not None and decoder is not None:
        encoder_data, decoder_data = _data_of(encoder, ENCODER_FILE), _data_of(decoder, DECODER_FILE)
        if raw is None:
            files[encoder_name] = {"model.onnx": encoder, **encoder_data}
            files[decoder_name] = {"model.onnx": decoder, **decoder_data}
        else:
            files[encoder_name], files[decoder_name] = {"model.onnx": raw[0]}, {"model.onnx": raw[1]}
        graphs = {ENCODER_FILE: encoder, DECODER_FILE: decoder, **encoder_data, **decoder_data}
    # The segmenter comes last: when it is there, all of the model is.
    files[name] = {**graphs, **extras, "model.py": _SEGMENTER_SOURCE, GRAPHS_FILE: graphs_to_json(spec.graphs)}
    configs = _configs(spec, name, spec if raw is None else _as_raw(spec))
    with writing(repository) as workshop:
        mine = {folder: content for folder, content in files.items() if not _is_profile(repository, folder)}
        version = _version_for(workshop, mine)
        for folder, content in mine.items():
            workshop.write_model(folder, version, content, configs[folder])
        for twin in raw_names(name):
            if twin not in files and not _is_profile(repository, twin):
                workshop.remove_model(twin)  # graphs of other weights than those that are served now
    return [folder for folder in (name, encoder_name, decoder_name) if folder in mine]


def write_plain_model(
    name: str,
    model_file: Path,
    repository: Path,
    *,
    inputs: Iterable[Tensor],
    outputs: Iterable[Tensor],
    profile: str,
) -> str:
    """Writes one ONNX graph under the name and with the tensors that a foreign tool expects; returns the name.

    Such a folder is always served, and :func:`write_models` leaves it alone.

    Args:
        model_file: linked or copied; its external data, ``<file name>_data``, keep their name.
        inputs, outputs: (name, Triton data type, dims), -1 where a dim may vary.
        profile: the tool that it is for.
    """
    _check_present(model_file)
    parameters = parameters_at(repository, name)
    if (repository / name).exists() and not (parameters and (PROFILE in parameters or GRAPH_OF in parameters)):
        raise _strange(name, repository)
    config = plain_config(name, inputs, outputs, profile=profile)
    files: Files = {"model.onnx": model_file, **_data_of(model_file, model_file.name)}
    with writing(repository) as workshop:
        workshop.write_model(name, _version_for(workshop, {name: files}), files, config_text(config))
    return name


def remove_models(spec: ModelSpec, repository: Path) -> list[str]:
    """Removes a model under whatever names it has and returns these; folders of profiles stay."""
    removed = []
    while (name := find_name(spec, repository)) is not None:
        with writing(repository) as workshop:
            for folder in (name, *raw_names(name)):
                if (repository / folder).exists() and not _is_profile(repository, folder):
                    workshop.remove_model(folder)
                    removed.append(folder)
    return removed


def _configs(spec: ModelSpec, name: str, raw: ModelSpec) -> dict[str, str]:
    """Folder -> config text of a model's three folders; ``raw`` has the graphs of the plain two."""
    encoder_name, decoder_name = raw_names(name)
    configs = (segmenter_config(spec, name), encoder_config(raw, encoder_name), decoder_config(raw, decoder_name))
    return {config.name: config_text(config) for config in configs}


def _as_raw(spec: ModelSpec) -> ModelSpec:
    return replace(spec, graphs=raw_graphs(spec))


def _version_for(workshop: Workshop, files: dict[str, Files]) -> int:
    """The newest version where every folder that exists has these files as its newest, else the next one of all."""
    folders = {workshop.repository / name: content for name, content in files.items()}
    newest = {folder: newest_version(folder) for folder in folders if folder.exists()}
    highest = max(newest.values(), default=0)
    current = all(
        version == highest and holds(folder / str(version), folders[folder]) for folder, version in newest.items()
    )
    return highest if highest and current else highest + 1


def _refuse_strangers(spec: ModelSpec, name: str, repository: Path) -> None:
    """SetupError where a folder of somebody else's, or of another model, would be overwritten."""
    parameters = parameters_at(repository, name)
    ours = parameters is not None and MODEL_ID in parameters
    if (repository / name).exists() and not ours:
        raise _strange(name, repository)
    if parameters is not None and ours and parameters[MODEL_ID] != spec.id:
        raise SetupError(
            f"{name} in {repository} is {parameters[MODEL_ID]}: make {spec.id} the default to take its place"
        )
    for twin in raw_names(name):
        marks = parameters_at(repository, twin) or {}
        # Twins that older versions wrote have no mark; they stand beside a segmenter.
        if (repository / twin).exists() and not (ours or GRAPH_OF in marks or PROFILE in marks):
            raise _strange(twin, repository)


def _data_of(graph: Path, name: str) -> dict[str, Path]:
    """A graph's external data under the name that the graph itself knows them by."""
    data = graph.with_name(graph.name + EXTERNAL_DATA_SUFFIX)
    if not data.exists():
        return {}
    if graph.name != name:
        raise SetupError(f"{graph} has external data, whose name cannot be changed: call the graph {name}")
    return {data.name: data}


def _check_present(*graphs: Path) -> None:
    for graph in graphs:
        if not graph.is_file():
            raise SetupError(f"the graph {graph} is missing: export or pull the model again")
