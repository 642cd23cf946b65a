"""The commands about models: what there is, download, export, set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from triton_sam.cli.progress import download_progress
from triton_sam.console import out
from triton_sam.errors import InvalidInput
from triton_sam.models.catalog import CATALOG, DEFAULT_MODEL, get_spec, resolve_ids
from triton_sam.models.specs import EngineChoice, Precision
from triton_sam.models.vlm_catalog import FAMILY, VLM_CATALOG, get_vlm, is_vlm
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.models.vlm_weights import VlmStore
from triton_sam.models.weights import WeightStore
from triton_sam.settings import Settings, get_settings

models_app = typer.Typer(help="List the models, or remove one.", invoke_without_command=True)
RepositoryOption = Annotated[Path | None, typer.Option("--model-repository", help="Default: below TRITON_SAM_HOME.")]
CheckpointOption = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="A .pt, .pth or .safetensors file or a Hugging Face folder; default: download."),
]
ImageSizeOption = Annotated[int | None, typer.Option(help="Side of the model's square; default: as it was trained.")]
DeviceOption = Annotated[str, typer.Option(help="Where torch runs: cpu or cuda.")]
PrecisionOption = Annotated[Precision, typer.Option(help="How numbers are kept inside the graphs.")]
SeedOption = Annotated[
    int | None, typer.Option(min=0, help="Of the images and prompts that an export is checked on; default: 0.")
]


@models_app.callback()
def models(context: typer.Context) -> None:
    """Table of all models: id, family, size, licence, installed."""
    if context.invoked_subcommand is not None:
        return
    store = WeightStore(get_settings().home)
    table = Table(
        *(Column(name, no_wrap=True) for name in ("id", "family", "size", "licence", "installed")), "what it is"
    )
    for spec in CATALOG.values():
        installed = "yes" if store.is_installed(spec) else "no"
        table.add_row(spec.id, spec.family, f"{spec.size / 1e6:.0f} MB", spec.licence, installed, spec.title)
    checkpoints = VlmStore(get_settings().home)
    for vlm in VLM_CATALOG.values():
        installed = "yes" if checkpoints.is_installed(vlm) else "no"
        table.add_row(vlm.id, FAMILY, f"{vlm.size / 1e6:.0f} MB", vlm.licence, installed, vlm.title)
    out.print(table)


@models_app.command("rm")
def models_rm(model_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Delete a model's files, exports and repository folders."""
    from triton_sam.repository.setup import tear_down

    settings = get_settings()
    if is_vlm(model_id):
        _remove_vlm(get_vlm(model_id), settings)
        return
    freed = tear_down(get_spec(model_id), WeightStore(settings.home), settings.repository)
    out.print(f"removed {model_id}, {freed / 1e6:.0f} MB are free again" if freed else f"{model_id} was not installed")


def pull(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="For example sam2:tiny.")],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="The official checkpoint, even where ready-made graphs exist.")
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Ready-made graphs for tools that decode by themselves.")
    ] = False,
) -> None:
    """Download a model's files and verify their checksums."""
    if is_vlm(model_id):
        _pull_vlm(get_vlm(model_id), onnx)
        return
    spec = get_spec(model_id)
    store = WeightStore(get_settings().home)
    if onnx:
        with download_progress() as progress:
            folder = store.pull_plain(spec, progress)
        out.print(f"the ready-made graphs of {model_id} are in {folder}")
        return
    if checkpoint or not spec.files:
        with download_progress() as progress:
            path = store.pull_checkpoint(spec, progress)
        out.print(f"the checkpoint of {model_id} is in {path}")
        return
    was_installed = store.is_installed(spec)
    with download_progress() as progress:
        store.pull(spec, progress)  # what is there is compared with its checksum
    already = " already" if was_installed else ""
    out.print(f"{model_id} is installed{already}, {spec.size / 1e6:.0f} MB in {store.blobs}")


def export(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="For example sam2.1:large; auto: ask the checkpoint.")],
    checkpoint: CheckpointOption = None,
    output_dir: Annotated[Path | None, typer.Option(help="Default: below TRITON_SAM_HOME.")] = None,
    image_size: ImageSizeOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = Precision.FP32,
    seed: SeedOption = None,
) -> None:
    """Write a checkpoint as ONNX graphs, and check them against torch."""
    from triton_sam.repository.export_cache import ExportRequest, export_model

    if model_id == "auto" and checkpoint is None:
        raise InvalidInput("`export auto` asks the checkpoint which model it is: name one with --checkpoint")
    if is_vlm(model_id):
        vlm = get_vlm(model_id)
        raise InvalidInput(f"{vlm.id} needs no export: `triton-sam setup {vlm.id}` serves its checkpoint as it is")
    spec = None if model_id == "auto" else get_spec(model_id)
    request = ExportRequest(checkpoint, image_size, _device(device), precision, seed)
    store = WeightStore(get_settings().home)
    with download_progress() as progress:
        folder, report = export_model(spec, store, request, progress, output_dir, _say(model_id))
    _print_parity(report)
    opset = max(report["opset"].values())
    out.print(f"{report['model']} is exported to {folder}, opset {opset}; all figures: {folder / 'report.json'}")


def setup(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="Ids (also vlm:...), families (sam1, sam2, sam3) or all of these."),
    ] = None,
    model_repository: RepositoryOption = None,
    profile: Annotated[
        str | None, typer.Option(help="Write the models that another tool calls by name: paintera.")
    ] = None,
    checkpoint: CheckpointOption = None,
    image_size: ImageSizeOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = Precision.FP32,
    seed: SeedOption = None,
    engine: Annotated[
        EngineChoice,
        typer.Option(help="torch: for a GPU, with ONNX graphs beside; torch-only: without; auto: torch with a GPU."),
    ] = EngineChoice.AUTO,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="An encoder partly in 8 bits for CPUs: a third less time, and about 2 % of clicks get another mask.",
        ),
    ] = False,
) -> None:
    """Download, export where needed, and write the Triton model repository."""
    from triton_sam.repository.export_cache import ExportRequest
    from triton_sam.repository.setup import set_up

    settings = get_settings()
    repository = model_repository or settings.repository
    request = ExportRequest(checkpoint, image_size, _device(device), precision, seed)
    if fast:
        _check_fast(names or [], profile, request)
    if profile is not None:
        _set_up_profile(profile, names or [], settings, repository, request)
        return
    if not names:
        raise InvalidInput("name what to set up: an id such as sam2:tiny, a family (sam1, sam2, sam3) or all")
    vlms = [get_vlm(name) for name in dict.fromkeys(names) if is_vlm(name)]
    names = [name for name in names if not is_vlm(name)]
    specs = resolve_ids(names)
    if checkpoint is not None and len(specs) + len(vlms) != 1:
        raise InvalidInput("--checkpoint goes with one model: name only that")
    if vlms and (request != ExportRequest(checkpoint) or engine is not EngineChoice.AUTO):
        left_out = "--image-size, --device, --precision, --seed and --engine"
        raise InvalidInput(f"{vlms[0].id} is served as it is: leave {left_out} out")
    for vlm in vlms:
        _set_up_vlm(vlm, repository, checkpoint)
    asked_by_family = {spec.id for name in names if ":" not in name for spec in resolve_ids([name])}
    for spec in specs:
        with download_progress() as progress:
            written = set_up(
                spec,
                WeightStore(settings.home),
                repository,
                progress,
                request=request,
                make_default=spec.id in asked_by_family,
                engine=engine,
                cpu_encoder=settings.cpu_encoder,
                fast_encoder=fast or bool(settings.fast_encoder),
                fast_decoder=settings.fast_decoder,
                say=_say(spec.id),
            )
        out.print(f"{spec.id} is ready to serve: {', '.join(written)} in {repository}")


def _check_fast(names: list[str], profile: str | None, request: Any) -> None:
    """InvalidInput where nothing of what is named has an encoder in 8 bits."""
    specs = resolve_ids([name for name in names if not is_vlm(name)])
    if profile is not None or not request.is_plain or not any(spec.files for spec in specs):
        raise InvalidInput(f"--fast is for ready-made models such as {DEFAULT_MODEL}: leave it out here")


def _set_up_profile(profile: str, names: list[str], settings: Settings, repository: Path, request: Any) -> None:
    from triton_sam.repository.profiles import get_profile, set_up_profile

    chosen = get_profile(profile)
    for name in names:
        if is_vlm(name):
            raise InvalidInput(f"{chosen.title} does not call {get_vlm(name).id}: leave it out")
    wanted = [spec.id for spec in resolve_ids(names)] or None
    with download_progress() as progress:
        written = set_up_profile(
            chosen, wanted, WeightStore(settings.home), repository, progress, request, _say(profile)
        )
    out.print(f"ready for {chosen.title}: {', '.join(written)} in {repository}")


def _pull_vlm(vlm: VlmSpec, onnx: bool) -> None:
    if onnx:
        raise InvalidInput(f"{vlm.id} has no ready-made graphs for other tools: leave --onnx out")
    with download_progress() as progress:
        folder = VlmStore(get_settings().home).pull(vlm, progress)
    out.print(f"the checkpoint of {vlm.id} is in {folder}")


def _set_up_vlm(vlm: VlmSpec, repository: Path, checkpoint: Path | None) -> None:
    """Writes its folders; the weights come by themselves, when it is first asked."""
    from triton_sam.repository.vlms import write_vlm

    written = write_vlm(vlm, repository, checkpoint)
    out.print(f"{vlm.id} is ready to serve: {', '.join(written)} in {repository}")
    if checkpoint is None and not VlmStore(get_settings().home).is_installed(vlm):
        about = f"{vlm.size / 1e9:.1f} GB from the Hugging Face Hub"
        out.print(f"its first answer downloads {about}; `triton-sam pull {vlm.id}` does so before")


def _remove_vlm(vlm: VlmSpec, settings: Settings) -> None:
    from triton_sam.repository.vlms import remove_vlm

    store = VlmStore(settings.home)
    freed = store.remove(vlm)
    removed = remove_vlm(vlm, settings.repository)
    if freed:
        out.print(f"removed {vlm.id}, {freed / 1e6:.0f} MB are free again")
    elif vlm.source is not None and store.is_installed(vlm):
        out.print(f"{vlm.id} is no longer served; its files are not of `triton-sam pull` and stay in the Hub's cache")
    else:
        out.print(f"removed {', '.join(removed)}" if removed else f"{vlm.id} was not installed")


def _say(what: str) -> Any:
    return lambda step: out.print(f"{what}: {step}")


def _device(device: str) -> str:
    if device not in ("cpu", "cuda"):
        raise InvalidInput(f"--device is cpu or cuda, not {device!r}")
    return device


def _print_parity(report: dict[str, Any]) -> None:
    """The largest difference of each output over all prompts and images, and the worst mask overlap."""
    table = Table("output", "largest difference", "of its deviation", "worst mask IoU", title="ONNX against torch")
    for row in report["summary"]:
        overlap = "" if row["iou"] is None else f"{row['iou']:.5f}"
        table.add_row(row["output"], f"{row['max_abs_diff']:.2e}", f"{row['share']:.1e}", overlap)
    out.print(table)
