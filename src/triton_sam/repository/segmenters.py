"""Finds, writes, renames and removes segmenters in a Triton model repository.

Each model has three folders: the segmenter and the two plain graphs, which also run in NVIDIA's container. The default
model of a family has the family's name (``sam2``, ``sam2_encoder``, ``sam2_decoder``), every other model its own
(``sam2.1_large``, ...). Folders for other tools ("profiles") are left alone.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.models.catalog import find_spec, present_id
from triton_sam.models.specs import (
    DECODER_FILE,
    ENCODER_FILE,
    EXTERNAL_DATA_SUFFIX,
    GRAPHS_FILE,
    NETWORK_FILE,
    ModelSpec,
    graphs_to_json,
    raw_graphs,
    triton_name,
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
    EXTRA_FILES,
    Files,
    RepositoryWriter,
    holds,
    newest_version,
    read_config,
    served_spec,
    with_parts,
    writing,
)

log = logging.getLogger(__name__)

_SEGMENTER_SOURCE = '''"""Written by `triton-sam setup`; the code lives in the triton_sam package."""

from triton_sam.backend.segmenter import TritonPythonModel  # noqa: F401
'''

# -- finding --------------------------------------------------------------------------------------------------


def find_segmenters(repository: Path) -> dict[str, ModelSpec]:
    """Triton name -> catalogue row, with the graphs of the newest version, of the segmenters in a repository."""
    found = {}
    for name, parameters in models_in(repository):
        row = find_spec(parameters.get(MODEL_ID, ""))
        if row is not None:
            folder = repository / name
            try:
                found[name] = served_spec(row, folder / str(newest_version(folder)))
            except SetupError as error:
                log.warning("%s is left out: %s", name, error)
    return found


def find_profile_models(repository: Path) -> list[str]:
    """Triton names of the folders that were written for other tools."""
    return [name for name, parameters in models_in(repository) if PROFILE in parameters]


def find_name(spec: ModelSpec, repository: Path) -> str | None:
    """The Triton name of a model's segmenter, preferably the family's name; None if the model is not there."""
    names = [name for name, parameters in models_in(repository) if present_id(parameters.get(MODEL_ID, "")) == spec.id]
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
    """The parameters of a folder's config; None if it cannot be read."""
    text = read_config(repository / name)
    return None if text is None else parameters_of(text)


def is_current(spec: ModelSpec, repository: Path) -> bool:
    """Whether the repository holds the model as this version of the code would write it.

    Exported graphs may have any description; ready-made ones must be those of ``spec``.
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
    """Rewrites a model from the graphs in its own segmenter; False if it must be set up from its sources."""
    name = find_name(spec, repository)
    if name is None:
        return False
    newest = repository / name / str(newest_version(repository / name))
    served = _acceptable(spec, newest)
    if served is None:
        return False
    extras = {extra: newest / extra for extra in EXTRA_FILES if (newest / extra).is_file()}
    if not _has_graphs(newest):
        write_models(served, None, None, repository, name=name, extras=extras)
        return True
    graphs = newest / ENCODER_FILE, newest / DECODER_FILE
    from triton_sam.export.raw_contract import write_contract_pair

    with tempfile.TemporaryDirectory(prefix="triton-sam-raw-") as folder:
        try:
            raw = write_contract_pair(served, *graphs, Path(folder))
        except SetupError as error:
            log.warning("%s is set up again: %s", spec.id, error)
            return False
        write_models(served, *graphs, repository, name=name, extras=extras, raw=raw)
    return True


def is_exported(spec: ModelSpec, repository: Path) -> bool:
    """Whether the model in the repository was exported, not written from ready-made graphs."""
    name = find_name(spec, repository)
    found = None if name is None else _acceptable(spec, repository / name / str(newest_version(repository / name)))
    return found is not None and found.graphs.exported


def has_file(spec: ModelSpec, repository: Path, file: str) -> bool:
    """Whether the newest version of a model has a file of this name."""
    name = find_name(spec, repository)
    return name is not None and (repository / name / str(newest_version(repository / name)) / file).is_file()


def _acceptable(spec: ModelSpec, version_folder: Path) -> ModelSpec | None:
    """The model with the graphs of a version; None if it is incomplete, or ready-made and unlike ``spec``."""
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
    """The Triton name of a model in a repository, whether it is there already or not.

    A model keeps the name that it has. A new one gets its own, or if it is published, its family's if that is free.

    Args:
        make_default: gives the model its family's name; the model that had it is renamed to its own.
    """
    own = find_name(spec, repository)
    if own is not None and (own == spec.family or not make_default):
        return own
    default = parameters_at(repository, spec.family)
    if (repository / spec.family).exists() and (default is None or MODEL_ID not in default):
        raise _not_ours(spec.family, repository)
    if not make_default and (default is not None or spec.assembly is not None):
        return spec.variant_name
    if default is not None:
        _rename(spec.family, triton_name(present_id(default[MODEL_ID])), repository)
    if own is not None:
        _rename(own, spec.family, repository)
    return spec.family


def _rename(old: str, new: str, repository: Path) -> None:
    """Renames a segmenter and its plain graphs; nothing is removed before all copies exist."""
    pairs = [
        (source, target)
        for source, target in zip((old, *raw_names(old)), (new, *raw_names(new)), strict=True)
        if (repository / source).exists() and not _is_profile(repository, source)
    ]
    model_id = (parameters_at(repository, old) or {}).get(MODEL_ID)
    for _, target in pairs:
        parameters = parameters_at(repository, target) or {}
        ours = model_id in (parameters.get(MODEL_ID), parameters.get(GRAPH_OF)) or PROFILE in parameters
        if (repository / target).exists() and not ours:
            raise _not_ours(target, repository)
    with writing(repository) as writer:
        for source, target in pairs:
            if not _is_profile(repository, target):
                writer.copy_model(source, target, renamed(read_config(repository / source) or "", target))
        for source, _ in pairs:
            writer.remove_model(source)


def _is_profile(repository: Path, name: str) -> bool:
    return PROFILE in (parameters_at(repository, name) or {})


def _not_ours(name: str, repository: Path) -> SetupError:
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
    """Writes a model's three folders, or only the segmenter, and returns the names of the folders that it owns.

    Files that differ from those of the newest version become the next version; otherwise only the configs change.

    Args:
        encoder, decoder: ONNX files as ``spec.graphs`` describes them; linked into the repository, or copied between
            file systems. External data are beside them, as ``encoder.onnx_data`` and ``decoder.onnx_data``. None for a
            model that runs on torch only.
        name: of the segmenter; :func:`choose_name` by default.
        extras: name -> further file of the segmenter's version: weights for torch, graphs for CPUs, of a memory and of
            what finds concepts.
        raw: the plain encoder and decoder as :func:`~triton_sam.models.specs.raw_graphs` describes them, made by
            :func:`~triton_sam.export.raw_contract.write_contract_pair`; None to serve ``encoder`` and ``decoder``.
    """
    extras = extras or {}
    spec = with_parts(spec, extras)
    _check_present(*(graph for graph in (encoder, decoder, *(raw or ())) if graph is not None), *extras.values())
    name = name or choose_name(spec, repository)
    _refuse_to_overwrite(spec, name, repository)
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
    # The segmenter comes last: once it exists, the model is complete.
    files[name] = {**graphs, **extras, "model.py": _SEGMENTER_SOURCE, GRAPHS_FILE: graphs_to_json(spec.graphs)}
    configs = _configs(spec, name, spec if raw is None else _as_raw(spec))
    with writing(repository) as writer:
        mine = {folder: content for folder, content in files.items() if not _is_profile(repository, folder)}
        version = _version_for(writer, mine)
        for folder, content in mine.items():
            writer.write_model(folder, version, content, configs[folder])
        for raw_name in raw_names(name):
            if raw_name not in files and not _is_profile(repository, raw_name):
                writer.remove_model(raw_name)  # graphs of other weights than those that are served now
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
    """Writes one ONNX graph under the name and with the tensors that another tool expects; returns the name.

    Such a folder is always served, and :func:`write_models` leaves it alone.

    Args:
        model_file: linked or copied; its external data, ``<file name>_data``, keep their name.
        inputs, outputs: (name, Triton data type, dims), -1 for a dim that varies.
        profile: name of the tool.
    """
    _check_present(model_file)
    parameters = parameters_at(repository, name)
    if (repository / name).exists() and not (parameters and (PROFILE in parameters or GRAPH_OF in parameters)):
        raise _not_ours(name, repository)
    config = plain_config(name, inputs, outputs, profile=profile)
    files: Files = {"model.onnx": model_file, **_data_of(model_file, model_file.name)}
    with writing(repository) as writer:
        writer.write_model(name, _version_for(writer, {name: files}), files, config_text(config))
    return name


def remove_models(spec: ModelSpec, repository: Path) -> list[str]:
    """Removes a model under all its names and returns these; folders of profiles stay."""
    removed = []
    while (name := find_name(spec, repository)) is not None:
        with writing(repository) as writer:
            for folder in (name, *raw_names(name)):
                if (repository / folder).exists() and not _is_profile(repository, folder):
                    writer.remove_model(folder)
                    removed.append(folder)
    return removed


def _configs(spec: ModelSpec, name: str, raw: ModelSpec) -> dict[str, str]:
    """Folder -> config text of a model's three folders; ``raw`` has the graphs of the plain encoder and decoder."""
    encoder_name, decoder_name = raw_names(name)
    configs = (segmenter_config(spec, name), encoder_config(raw, encoder_name), decoder_config(raw, decoder_name))
    return {config.name: config_text(config) for config in configs}


def _as_raw(spec: ModelSpec) -> ModelSpec:
    return replace(spec, graphs=raw_graphs(spec))


def _version_for(writer: RepositoryWriter, files: dict[str, Files]) -> int:
    """The newest version if every existing folder has these files in it, else the next number."""
    folders = {writer.repository / name: content for name, content in files.items()}
    newest = {folder: newest_version(folder) for folder in folders if folder.exists()}
    highest = max(newest.values(), default=0)
    current = all(
        version == highest and holds(folder / str(version), folders[folder]) for folder, version in newest.items()
    )
    return highest if highest and current else highest + 1


def _refuse_to_overwrite(spec: ModelSpec, name: str, repository: Path) -> None:
    """SetupError if a folder that is not ours, or of another model, would be overwritten."""
    parameters = parameters_at(repository, name)
    ours = parameters is not None and MODEL_ID in parameters
    if (repository / name).exists() and not ours:
        raise _not_ours(name, repository)
    if parameters is not None and ours and present_id(parameters[MODEL_ID]) != spec.id:
        raise SetupError(f"{name} in {repository} is {parameters[MODEL_ID]}: make {spec.id} the default to replace it")
    for raw_name in raw_names(name):
        marks = parameters_at(repository, raw_name) or {}
        # Those of older versions have no mark, but a segmenter of ours.
        if (repository / raw_name).exists() and not (ours or GRAPH_OF in marks or PROFILE in marks):
            raise _not_ours(raw_name, repository)


def _data_of(graph: Path, name: str) -> dict[str, Path]:
    """A graph's external data under the name to which the graph refers."""
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
