"""The commands about models: list, remove, download, export, set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from triton_sam.cli.progress import download_progress
from triton_sam.console import out
from triton_sam.errors import InvalidInput
from triton_sam.models.catalog import chosen_spec, get_spec
from triton_sam.models.specs import EngineChoice, Precision
from triton_sam.models.vlm_catalog import get_vlm, is_vlm
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.models.vlm_weights import VlmStore
from triton_sam.models.weights import WeightStore
from triton_sam.settings import get_settings

models_app = typer.Typer(
    help="List the models and how far each is; show one in full; remove one.", invoke_without_command=True
)
RepositoryOption = Annotated[Path | None, typer.Option("--model-repository", help="Default: below TRITON_SAM_HOME.")]
CheckpointOption = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="A .pt, .pth or .safetensors file or a Hugging Face folder; default: download."),
]
ImageSizeOption = Annotated[int | None, typer.Option(help="Side of the square model input; default: as trained.")]
DeviceOption = Annotated[str, typer.Option(help="Device for torch: cpu or cuda.")]
PrecisionOption = Annotated[Precision, typer.Option(help="Number format inside the graphs.")]
SeedOption = Annotated[
    int | None, typer.Option(min=0, help="Seed of the images and prompts that check an export; default: 0.")
]


@models_app.callback()
def models(context: typer.Context) -> None:
    """List the models, and how far each is on this machine."""
    if context.invoked_subcommand is not None:
        return
    from triton_sam.cli.model_table import print_models

    print_models(get_settings())


@models_app.command("show")
def models_show(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="For example sam2:tiny, or a family for its default; without: all."),
    ] = None,
) -> None:
    """Show models in full: state, next steps, size, licence."""
    from triton_sam.cli.model_table import print_details

    print_details(names or [], get_settings())


@models_app.command("rm")
def models_rm(model_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Delete a model's files, exports and repository folders."""
    from triton_sam.repository.setup_models import remove_model

    out.print(remove_model(model_id, get_settings()))


def pull(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="For example sam2:tiny, or a family for its default.")],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="The official checkpoint, even if ready-made graphs exist.")
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Ready-made graphs for tools with a decoder of their own.")
    ] = False,
) -> None:
    """Download a model's files and verify their checksums."""
    if is_vlm(model_id):
        _pull_vlm(get_vlm(model_id), onnx)
        return
    spec = chosen_spec(model_id)
    store = WeightStore(get_settings().home)
    if onnx:
        with download_progress() as progress:
            folder = store.pull_plain(spec, progress)
        out.print(f"the ready-made graphs of {spec.id} are in {folder}")
        return
    if spec.embedded and not checkpoint:
        out.print(f"{spec.id} is part of this package: `triton-sam setup {spec.id}` makes it ready")
        return
    if checkpoint or not spec.files:
        with download_progress() as progress:
            path = store.pull_checkpoint(spec, progress)
        out.print(f"the checkpoint of {spec.id} is in {path}")
        return
    was_installed = store.is_installed(spec)
    with download_progress() as progress:
        store.pull(spec, progress)  # also verifies the files that are there
    already = " already" if was_installed else ""
    out.print(f"{spec.id} is installed{already}, {spec.size / 1e6:.0f} MB in {store.blobs}")


def export(
    model_id: Annotated[
        str, typer.Argument(metavar="ID", help="For example sam2.1:large; auto: detect it from the checkpoint.")
    ],
    checkpoint: CheckpointOption = None,
    output_dir: Annotated[Path | None, typer.Option(help="Default: below TRITON_SAM_HOME.")] = None,
    image_size: ImageSizeOption = None,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = Precision.FP32,
    seed: SeedOption = None,
) -> None:
    """Write a checkpoint as ONNX graphs, and check them against torch."""
    from triton_sam.repository.export_cache import ExportRequest, export_model
    from triton_sam.repository.tokenizer_file import add_tokenizer

    if model_id == "auto" and checkpoint is None:
        raise InvalidInput("`export auto` detects the model from a checkpoint: name one with --checkpoint")
    if is_vlm(model_id):
        vlm = get_vlm(model_id)
        raise InvalidInput(f"{vlm.id} needs no export: `triton-sam setup {vlm.id}` serves its checkpoint as it is")
    spec = None if model_id == "auto" else get_spec(model_id)
    request = ExportRequest(checkpoint, image_size, _device(device), precision, seed)
    store = WeightStore(get_settings().home)

    def say(step: str) -> None:
        _print_step(model_id, step)

    with download_progress() as progress:
        folder, report = export_model(spec, store, request, progress, output_dir, say)
        add_tokenizer(get_spec(report["model"]), folder, checkpoint, store, progress, say)
    _print_parity(report)
    opset = max(report["opset"].values())
    out.print(f"{report['model']} is exported to {folder}, opset {opset}; all figures: {folder / 'report.json'}")


# Many parameters: each is an option of the command, and typer reads them from the signature.
def setup(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID", help="Ids (sam2:tiny, vlm:shapes), families (sam1, sam2, sam3), or all: one of each family."
        ),
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
        typer.Option(help="torch: for a GPU, and ONNX graphs; torch-only: no graphs; auto: torch if there is a GPU."),
    ] = EngineChoice.AUTO,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Add an encoder partly in 8 bits for CPUs: a third less time; about 2 % of clicks get another mask.",
        ),
    ] = False,
) -> None:
    """Make models ready to serve: download them, and export them if needed."""
    from triton_sam.repository.export_cache import ExportRequest
    from triton_sam.repository.setup_models import SetupChoice, set_up_models

    export = ExportRequest(checkpoint, image_size, _device(device), precision, seed)
    choice = SetupChoice(names or [], model_repository, profile, export, engine, fast)
    for line in set_up_models(choice, get_settings(), download_progress, _print_step):
        out.print(line)


def _pull_vlm(vlm: VlmSpec, onnx: bool) -> None:
    if onnx:
        raise InvalidInput(f"{vlm.id} has no ready-made graphs for other tools: leave --onnx out")
    with download_progress() as progress:
        folder = VlmStore(get_settings().home).pull(vlm, progress)
    out.print(f"the checkpoint of {vlm.id} is in {folder}")


def _print_step(model: str, step: str) -> None:
    out.print(f"{model}: {step}")


def _device(device: str) -> str:
    if device not in ("cpu", "cuda"):
        raise InvalidInput(f"--device is cpu or cuda, not {device!r}")
    return device


def _print_parity(report: dict[str, Any]) -> None:
    """Prints the largest difference of each output over all prompts and images, and the worst mask overlap."""
    table = Table("output", "largest difference", "of its deviation", "worst mask IoU", title="ONNX against torch")
    for row in report["summary"]:
        overlap = "" if row["iou"] is None else f"{row['iou']:.5f}"
        table.add_row(row["output"], f"{row['max_abs_diff']:.2e}", f"{row['share']:.1e}", overlap)
    out.print(table)
