"""``triton-sam ask``: a question about an image; the answer is printed as it arrives, or becomes masks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from PIL import Image

from triton_sam.cli.image_options import check_targets
from triton_sam.cli.server_options import TokenOption, UrlOption
from triton_sam.client import wire
from triton_sam.console import err, out
from triton_sam.errors import InvalidInput

if TYPE_CHECKING:
    from triton_sam.client.vlm_ground import Grounded

_OVERLAY = Path("overlay.png")


# Many parameters: each is an option of the command, and typer reads them from the signature.
def ask(
    image: Annotated[Path, typer.Argument(help="An image file.")],
    prompt: Annotated[str, typer.Argument(help="A question, or a text to continue.")],
    model: Annotated[str, typer.Option(help="moondream2, kosmos2, llava or shapes.")] = "moondream2",
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer; default: the server's.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0: always the likeliest token.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, help="Sample only from the likeliest tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; repeatable.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole answer as JSON, with boxes and counts.")
    ] = False,
    segment: Annotated[
        bool, typer.Option("--segment", help="Make masks of what is asked for; moondream2, kosmos2 and shapes can.")
    ] = False,
    segmenter: Annotated[
        str | None, typer.Option(help="With --segment: name of the segmenter on the server; default sam2.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="With --segment: ground (the default), or detect or point for the name of an object."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            help="With --segment: *.json: the result; mask*.png: all masks; other .png: an overlay with labels. "
            "Repeatable; default overlay.png.",
        ),
    ] = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Ask a vision-language model on a running server (Triton, or the service); Ctrl-C stops the generation."""
    from triton_sam.client.vlm_client import TritonVLMClient

    if not prompt.strip():
        raise InvalidInput("there is nothing to ask: give a question in quotes")
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed, "stop": stop}
    if segment:
        _refuse_given(options, "is for answers in words: leave it out with --segment")
        targets = output or ([] if as_json else [_OVERLAY])
        check_targets(targets)
        with TritonVLMClient(url, token=token) as client:
            found = client.ground(model, image, prompt, task=task or "ground", segmenter=segmenter)
        _write(found, image, targets)
        _print_found(found, targets, as_json=as_json)
        return
    _refuse_given({"segmenter": segmenter, "task": task, "out": output}, "goes with --segment: give both")
    with TritonVLMClient(url, token=token) as client:
        _answer(client, model, image, prompt, options, as_json=as_json)


def _refuse_given(options: Mapping[str, object], reason: str) -> None:
    """InvalidInput if one of the options was given."""
    for name, value in options.items():
        if value not in (None, []):
            raise InvalidInput(f"--{name.replace('_', '-')} {reason}")


# -- answers in words --------------------------------------------------------------------------------------------


def _answer(client: Any, model: str, image: Path, prompt: str, options: dict[str, Any], *, as_json: bool) -> None:
    from triton_sam.client.vlm_calls import collected, vlm_call
    from triton_sam.core.images import file_bytes

    pieces = []
    for piece in client.pieces(vlm_call(model, file_bytes(image), prompt, **options)):
        pieces.append(piece)
        if not as_json:
            out.out(wire.text_of(piece, "generated_text"), end="", highlight=False)
            out.file.flush()
    answer = collected(pieces)
    if as_json:
        _print_json(answer.as_dict())
        return
    out.out("")
    for entity in answer.entities:
        for box in entity.boxes:
            out.out(f"  {entity.phrase}: {_numbers(box)}", highlight=False)
    if answer.finish_reason == "length":
        err.print(f"cut after {answer.completion_tokens} tokens: --max-new-tokens allows more")


def _print_json(document: dict[str, Any]) -> None:
    out.out(json.dumps(document, indent=2, ensure_ascii=False), highlight=False)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


# -- masks -------------------------------------------------------------------------------------------------------


def _write(found: Grounded, image: Path, targets: Sequence[Path]) -> None:
    """Writes the result as JSON, all masks as one, or an overlay, which the name of each target decides."""
    from triton_sam.core.image_choice import ImageChoice, picture_for_model

    for target in targets:
        if target.suffix.lower() == ".json":
            target.write_text(json.dumps(found.as_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        elif target.stem.lower().startswith("mask"):
            Image.fromarray(found.masks.any(axis=0)).convert("L").save(target)
        else:
            found.overlay(picture_for_model(image.expanduser(), ImageChoice())).save(target)


def _print_found(found: Grounded, targets: Sequence[Path], *, as_json: bool) -> None:
    if as_json:
        _print_json(found.as_dict())
        return
    if found.text:
        out.out(found.text, highlight=False)
    for region, score in zip(found.regions, found.scores, strict=True):
        where = f"point {_numbers(region.point)}" if region.point else f"box {_numbers(region.box or ())}"
        out.out(f"  {region.label}: {where}, score {score:.3f}", highlight=False)
    if not found.regions:
        err.print("the model points at nothing: ask for one thing, such as 'where is the cup?'")
    if found.found > len(found.regions):
        err.print(f"{found.found} were found, and the first {len(found.regions)} were segmented")
    if targets:
        out.out(f"{len(found.regions)} mask(s): {', '.join(map(str, targets))}", highlight=False)
