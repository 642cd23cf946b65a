"""What commands on an image file share: which of its pixels are meant, and the files that are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.core.image_choice import ImageChoice
from triton_sam.errors import InvalidInput

ImageArgument = Annotated[Path, typer.Argument(help="An image file.")]
PageOption = Annotated[int | None, typer.Option(help="Page of a TIFF with several, from 0 on.", min=0)]
ChannelOption = Annotated[
    int | None, typer.Option(help="Channel of an image with several, from 0 on, shown as grey.", min=0)
]
WindowOption = Annotated[
    str | None, typer.Option(help="LOW,HIGH in the image's own values: LOW becomes black and HIGH white.")
]
ModelOption = Annotated[str, typer.Option(help="Name of the segmenter on the server.")]


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image file, and what of it is meant."""

    path: Path
    choice: ImageChoice

    @classmethod
    def of(cls, image: Path, page: int | None, channel: int | None, window: str | None) -> ImageSource:
        """From the options of a command; InvalidInput if they are wrong."""
        return cls(image.expanduser(), ImageChoice(page, channel, window_of(window)))

    def send_with(self, client: SAM2TritonClient) -> None:
        """Makes it the client's current image."""
        choice = self.choice
        client.set_image(self.path, page=choice.page, channel=choice.channel, window=choice.window)


def check_targets(targets: Sequence[Path]) -> None:
    """InvalidInput if an output cannot be written, before the server is asked."""
    for target in targets:
        if target.suffix.lower() not in (".png", ".json"):
            raise InvalidInput(f"{target} is neither a .png nor a .json file: choose one of these suffixes")
        if not target.resolve().parent.is_dir():
            raise InvalidInput(f"the folder of {target} does not exist: create it first")


def window_of(text: str | None) -> tuple[float, float] | None:
    """The option ``--window LOW,HIGH``."""
    if text is None:
        return None
    low, high = numbers(text, (2,), "--window LOW,HIGH")
    return low, high


def numbers(text: str, counts: tuple[int, ...], usage: str) -> list[float]:
    """The numbers of an option like ``1,2``; InvalidInput if they are not as many as one of ``counts``."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in counts:
        raise InvalidInput(f"{text!r} is not a {usage}")
    return values
