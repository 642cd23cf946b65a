"""``triton-sam ask``: a question about an image; the answer is printed as it arrives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from triton_sam.cli.server_options import TokenOption, UrlOption
from triton_sam.client import wire
from triton_sam.console import err, out
from triton_sam.errors import InvalidInput


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
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Ask a vision-language model on a running server (Triton, or the service); Ctrl-C stops the generation."""
    from triton_sam.client.vlm_calls import collected, vlm_call
    from triton_sam.client.vlm_client import TritonVLMClient
    from triton_sam.core.images import file_bytes

    if not prompt.strip():
        raise InvalidInput("there is nothing to ask: give a question in quotes")
    call = vlm_call(
        model,
        file_bytes(image),
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=stop,
    )
    pieces = []
    with TritonVLMClient(url, token=token) as client:
        for piece in client.pieces(call):
            pieces.append(piece)
            if not as_json:
                out.out(wire.text_of(piece, "generated_text"), end="", highlight=False)
                out.file.flush()
    answer = collected(pieces)
    if as_json:
        out.out(json.dumps(answer.as_dict(), indent=2, ensure_ascii=False), highlight=False)
        return
    out.out("")
    for entity in answer.entities:
        for box in entity.boxes:
            out.out(f"  {entity.phrase}: {', '.join(f'{side:g}' for side in box)}", highlight=False)
    if answer.finish_reason == "length":
        err.print(f"cut after {answer.completion_tokens} tokens: --max-new-tokens allows more")
