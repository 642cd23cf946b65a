"""``triton-sam everything``: all masks of an image file from a running server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from triton_sam.cli.image_options import (
    ChannelOption,
    ImageArgument,
    ImageSource,
    ModelOption,
    PageOption,
    WindowOption,
    check_targets,
    numbers,
)
from triton_sam.cli.progress import points_progress
from triton_sam.cli.server_options import TokenOption, UrlOption
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.console import out
from triton_sam.core.everything.labels import label_image, label_png
from triton_sam.core.everything.options import everything_from
from triton_sam.core.image_choice import picture_for_model
from triton_sam.core.label_overlay import label_overlay
from triton_sam.errors import InvalidInput

Records = Sequence[Mapping[str, Any]]


# Many parameters: each is an option of the command line. Without a value the server's default holds.
def everything(
    image: ImageArgument,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            help="*.json: records with COCO RLE; label*.png: label image; other .png: an overlay. Repeatable.",
        ),
    ] = None,
    points_per_side: Annotated[int | None, typer.Option(help="Of the grid of points; default 32.")] = None,
    points_per_batch: Annotated[int | None, typer.Option(help="The most points decoded at once; default 64.")] = None,
    pred_iou_thresh: Annotated[
        float | None, typer.Option(help="Keep masks with a higher predicted IoU; default 0.8, SAM 1 0.88.")
    ] = None,
    stability_score_thresh: Annotated[
        float | None, typer.Option(help="Keep masks that are at least this stable; default 0.95.")
    ] = None,
    stability_score_offset: Annotated[
        float | None, typer.Option(help="How far the threshold moves for that; default 1.")
    ] = None,
    mask_threshold: Annotated[float | None, typer.Option(help="Logit of a mask's border; default 0.")] = None,
    box_nms_thresh: Annotated[
        float | None, typer.Option(help="Of two masks whose boxes have a higher IoU, one stays; default 0.7.")
    ] = None,
    crop_n_layers: Annotated[int | None, typer.Option(help="Layers of crops to look into; default 0.")] = None,
    crop_nms_thresh: Annotated[
        float | None, typer.Option(help="As --box-nms-thresh, between crops; default 0.7.")
    ] = None,
    crop_overlap_ratio: Annotated[
        float | None, typer.Option(help="Share by which crops overlap; default 512 / 1500.")
    ] = None,
    crop_n_points_downscale_factor: Annotated[
        int | None, typer.Option(help="Divides the points a side in each layer of crops; default 1.")
    ] = None,
    point_grids: Annotated[
        Path | None, typer.Option(help="JSON file with a list of [x, y] from 0 to 1 for each layer, as the grid.")
    ] = None,
    min_mask_region_area: Annotated[
        int | None, typer.Option(help="Clean away holes and islands with fewer pixels; default 0.")
    ] = None,
    multimask_output: Annotated[
        bool | None, typer.Option(help="Judge all masks of a point, not only one; default on.")
    ] = None,
    use_m2m: Annotated[bool | None, typer.Option(help="Decode each mask once more; default off.")] = None,
    region: Annotated[str | None, typer.Option(help="x0,y0,x1,y1 in original pixels: look only there.")] = None,
    page: PageOption = None,
    channel: ChannelOption = None,
    window: WindowOption = None,
    model: ModelOption = "sam2",
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Find everything in an image on a running server (Triton, or the service); Ctrl-C stops it."""
    given = {
        "points_per_side": points_per_side,
        "points_per_batch": points_per_batch,
        "pred_iou_thresh": pred_iou_thresh,
        "stability_score_thresh": stability_score_thresh,
        "stability_score_offset": stability_score_offset,
        "mask_threshold": mask_threshold,
        "box_nms_thresh": box_nms_thresh,
        "crop_n_layers": crop_n_layers,
        "crop_nms_thresh": crop_nms_thresh,
        "crop_overlap_ratio": crop_overlap_ratio,
        "crop_n_points_downscale_factor": crop_n_points_downscale_factor,
        "point_grids": None if point_grids is None else _grids(point_grids.expanduser()),
        "min_mask_region_area": min_mask_region_area,
        "multimask_output": multimask_output,
        "use_m2m": use_m2m,
        "region": None if region is None else numbers(region, (4,), "--region x0,y0,x1,y1"),
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    everything_from(options)  # before anything is read or sent
    targets = output or [Path("overlay.png")]
    check_targets(targets)
    source = ImageSource.of(image, page, channel, window)
    with SAM2TritonClient(url, model, token=token) as client, points_progress() as report:
        source.send_with(client)
        records = client.everything(output_mode="coco_rle", on_progress=report, **options)
    for target in targets:
        write_records(records, source, target)
    out.print(f"{len(records)} mask(s): {', '.join(map(str, targets))}")


def write_records(records: Records, image: ImageSource, target: Path) -> None:
    """Writes records with COCO's RLE as JSON, a label image or an overlay, which the name of ``target`` decides."""
    if target.suffix.lower() == ".json":
        target.write_text(json.dumps(records) + "\n")
        return
    picture = picture_for_model(image.path, image.choice)
    labels = label_image([record["segmentation"] for record in records], *picture.size)
    if target.stem.lower().startswith("label"):
        target.write_bytes(label_png(labels))
    else:
        label_overlay(picture, labels).save(target)


def _grids(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} is not a JSON file with grids of points ({error})") from None
