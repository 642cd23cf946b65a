"""Finds, writes and removes vision-language models in a Triton model repository.

Each model has two folders, which only name the code and the checkpoint: ``llava_stream`` runs the network, ``llava``
calls it and sends the whole answer. Weights are not in the repository: they are located at the first request
(:func:`triton_sam.models.vlm_weights.checkpoint_folder`).
"""

from __future__ import annotations

from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.models.vlm_catalog import VLM_CATALOG
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.models.vlm_weights import user_folder
from triton_sam.repository.configs import config_text
from triton_sam.repository.model_folders import newest_version, read_config, writing
from triton_sam.repository.segmenters import models_in, parameters_at
from triton_sam.repository.vlm_configs import (
    CHECKPOINT,
    ROLE,
    SINGLE_RESPONSE,
    VLM_ID,
    single_response_config,
    streaming_config,
)

_SOURCE = '''"""Written by `triton-sam setup`; the code lives in the triton_sam package."""

from triton_sam.backend.{module} import TritonPythonModel  # noqa: F401
'''
_VERSION = 1


def find_vlms(repository: Path) -> dict[str, VlmSpec]:
    """Triton name -> catalogue row of the vision-language models in a repository that have both folders."""
    found = {}
    for name, parameters in models_in(repository):
        row = VLM_CATALOG.get(parameters.get(VLM_ID, ""))
        if row is not None and parameters.get(ROLE) == SINGLE_RESPONSE and name == row.name:
            streaming = parameters_at(repository, row.stream_name) or {}
            if streaming.get(VLM_ID) == row.id:
                found[name] = row
    return found


def own_checkpoint(spec: VlmSpec, repository: Path) -> Path | None:
    """The user's own checkpoint of a model in a repository; None if it is the catalogue's."""
    checkpoint = (parameters_at(repository, spec.stream_name) or {}).get(CHECKPOINT)
    return Path(checkpoint) if checkpoint else None


def is_current_vlm(spec: VlmSpec, repository: Path) -> bool:
    """Whether a repository holds the model as this version of the code would write it, whichever checkpoint it has."""
    checkpoint = own_checkpoint(spec, repository)
    return all(
        read_config(repository / name) == config
        and newest_version(repository / name) == _VERSION
        and _text(repository / name / str(_VERSION) / "model.py") == source
        for name, (config, source) in _contents(spec, checkpoint).items()
    )


def write_vlm(spec: VlmSpec, repository: Path, checkpoint: Path | None = None) -> list[str]:
    """Writes a model's two folders and returns their names.

    Args:
        checkpoint: the user's own folder, which is checked here; None for the catalogue's checkpoint.
    """
    if checkpoint is not None:
        checkpoint = user_folder(spec, checkpoint)
    _refuse_to_overwrite(spec, repository)
    with writing(repository) as writer:
        for name, (config, source) in _contents(spec, checkpoint).items():
            writer.write_model(name, _VERSION, {"model.py": source}, config)
    return [spec.name, spec.stream_name]


def remove_vlm(spec: VlmSpec, repository: Path) -> list[str]:
    """Removes a model's folders and returns their names; folders with these names that are not ours stay."""
    ours = [name for name in (spec.name, spec.stream_name) if _is_ours(spec, repository, name)]
    if ours:
        with writing(repository) as writer:
            for name in ours:
                writer.remove_model(name)
    return ours


def _contents(spec: VlmSpec, checkpoint: Path | None) -> dict[str, tuple[str, str]]:
    """Folder -> (config, model.py). The streaming model comes first: once the other exists, the model is complete."""
    path = "" if checkpoint is None else str(checkpoint)
    return {
        spec.stream_name: (config_text(streaming_config(spec, path)), _SOURCE.format(module="vlm")),
        spec.name: (config_text(single_response_config(spec, path)), _SOURCE.format(module="vlm_door")),
    }


def _refuse_to_overwrite(spec: VlmSpec, repository: Path) -> None:
    for name in (spec.name, spec.stream_name):
        if (repository / name).exists() and not _is_ours(spec, repository, name):
            raise SetupError(
                f"{repository} has a folder {name} that is no part of {spec.id}: "
                "move it away, or choose another repository"
            )


def _is_ours(spec: VlmSpec, repository: Path, name: str) -> bool:
    return (parameters_at(repository, name) or {}).get(VLM_ID) == spec.id


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
