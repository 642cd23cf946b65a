"""Images for whoever has none at hand: photographs out of scikit-image's wheel, and one that is drawn here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter
from PIL import Image
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from triton_sam.errors import NotFound
from triton_sam.service import schemas
from triton_sam.service.admission.access import SAMPLES
from triton_sam.service.routes import cells

_DRAWN = "cells"
_DRAWN_TYPE = "image/jpeg"
_CACHE = {"Cache-Control": "public, max-age=86400"}
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class _Photograph:
    """A file of scikit-image; the credit says what its documentation says."""

    name: str
    file: str
    title: str
    credit: str

    @property
    def media_type(self) -> str:
        return "image/png" if self.file.endswith(".png") else "image/jpeg"


_PHOTOGRAPHS = (
    _Photograph("coffee", "coffee.png", "Coffee", "Rachel Michetti, courtesy of Pikolo Espresso Bar; CC0"),
    _Photograph("cat", "chelsea.png", "Cat", "Chelsea, by Stefan van der Walt; CC0"),
    _Photograph(
        "coins", "coins.png", "Coins", "Greek coins from Pompeii, Brooklyn Museum; no known copyright restrictions"
    ),
    _Photograph(
        "tissue",
        "ihc.png",
        "Tissue",
        "Colonic glands, Center for Microscopy And Molecular Imaging (CMMI); no known copyright restrictions",
    ),
    _Photograph("retina", "retina.jpg", "Retina", "Mikael Häggström, Wikimedia Commons; CC0"),
)
_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": f"of {SAMPLES}",
    "schema": {"type": "string", "minLength": 1, "maxLength": _LONGEST_NAME},
    "example": _DRAWN,
}


def samples_router(folder: Path | None) -> APIRouter:
    """``/samples`` and the images that it lists.

    Args:
        folder: scikit-image's photographs; None where there are none.
    """
    router = APIRouter(tags=["samples"])
    drawing = asyncio.Lock()

    @router.get(SAMPLES, summary="Images to try things on", responses=schemas.refusals())
    async def samples() -> list[schemas.SampleRow]:
        return await run_in_threadpool(lambda: _rows(folder))

    @router.get(
        f"{SAMPLES}/{{name}}",
        summary="One of them",
        response_class=Response,
        responses={
            **schemas.answer_of("The image file", "image/png", "image/jpeg", binary=True),
            **schemas.refusals(404),
        },
        openapi_extra={"parameters": [_NAME]},
    )
    async def sample(request: Request) -> Response:
        name = request.path_params["name"]
        if name == _DRAWN:
            async with drawing:  # whoever comes meanwhile waits here and takes no thread
                picture = await run_in_threadpool(cells.picture)
            return Response(picture, media_type=_DRAWN_TYPE, headers=_CACHE)
        found = {photograph.name: (photograph, file) for photograph, file in await run_in_threadpool(_present, folder)}
        if name not in found:
            names = ", ".join([*found, _DRAWN])
            raise NotFound(f"there is no sample {name[:_LONGEST_NAME]!r}: there are {names}")
        photograph, file = found[name]
        return FileResponse(file, media_type=photograph.media_type, headers=_CACHE)

    return router


def _present(folder: Path | None) -> list[tuple[_Photograph, Path]]:
    """The photographs that are there: which of them a wheel has is its maker's decision."""
    if folder is None:
        return []
    files = [(photograph, folder / photograph.file) for photograph in _PHOTOGRAPHS]
    return [(photograph, file) for photograph, file in files if file.is_file()]


def _rows(folder: Path | None) -> list[schemas.SampleRow]:
    rows = []
    for photograph, file in _present(folder):
        with Image.open(file) as picture:  # its head only
            size = picture.size
        rows.append(_row(photograph.name, photograph.title, photograph.credit, size, file.suffix))
    return [*rows, _row(_DRAWN, "Cells (drawn)", "Drawn by triton-sam; no photograph", cells.SIZE, ".jpg")]


def _row(name: str, title: str, credit: str, size: tuple[int, int], suffix: str) -> schemas.SampleRow:
    # No slash at the beginning: a proxy may have put the service behind a path of its own.
    address = f"{SAMPLES}/{name}".lstrip("/")
    width, height = size
    return schemas.SampleRow(
        name=name, title=title, credit=credit, width=width, height=height, address=address, file=f"{name}{suffix}"
    )
