"""Sample images: photographs of the scikit-image package, and one synthetic image."""

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
from triton_sam.service.admission.paths import SAMPLES
from triton_sam.service.routes import synthetic_cells

_SYNTHETIC = "cells"
_SYNTHETIC_TYPE = "image/jpeg"
_CACHE = {"Cache-Control": "public, max-age=86400"}
_MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class _Photograph:
    """A file of scikit-image; the credit is from its documentation."""

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
    "description": f"a name from {SAMPLES}",
    "schema": {"type": "string", "minLength": 1, "maxLength": _MAX_NAME},
    "example": _SYNTHETIC,
}


def samples_router(folder: Path | None) -> APIRouter:
    """The router of ``/samples`` and its images.

    Args:
        folder: scikit-image's photographs; None if it is not installed.
    """
    router = APIRouter(tags=["samples"])
    drawing = asyncio.Lock()

    @router.get(SAMPLES, summary="The sample images", responses=schemas.error_responses())
    async def samples() -> list[schemas.SampleRow]:
        return await run_in_threadpool(lambda: _rows(folder))

    @router.get(
        f"{SAMPLES}/{{name}}",
        summary="One sample image",
        response_class=Response,
        responses={
            **schemas.response_of("The image file", "image/png", "image/jpeg", binary=True),
            **schemas.error_responses(404),
        },
        openapi_extra={"parameters": [_NAME]},
    )
    async def sample(request: Request) -> Response:
        name = request.path_params["name"]
        if name == _SYNTHETIC:
            async with drawing:  # concurrent requests wait here and take no thread
                picture = await run_in_threadpool(synthetic_cells.picture)
            return Response(picture, media_type=_SYNTHETIC_TYPE, headers=_CACHE)
        found = {photograph.name: (photograph, file) for photograph, file in await run_in_threadpool(_present, folder)}
        if name not in found:
            names = ", ".join([*found, _SYNTHETIC])
            raise NotFound(f"there is no sample {name[:_MAX_NAME]!r}: available are {names}")
        photograph, file = found[name]
        return FileResponse(file, media_type=photograph.media_type, headers=_CACHE)

    return router


def _present(folder: Path | None) -> list[tuple[_Photograph, Path]]:
    """The photographs that exist; versions of scikit-image differ in what they contain."""
    if folder is None:
        return []
    files = [(photograph, folder / photograph.file) for photograph in _PHOTOGRAPHS]
    return [(photograph, file) for photograph, file in files if file.is_file()]


def _rows(folder: Path | None) -> list[schemas.SampleRow]:
    rows = []
    for photograph, file in _present(folder):
        with Image.open(file) as picture:  # reads the header only
            size = picture.size
        rows.append(_row(photograph.name, photograph.title, photograph.credit, size, file.suffix))
    return [
        *rows,
        _row(_SYNTHETIC, "Cells (drawn)", "Drawn by triton-sam; no photograph", synthetic_cells.SIZE, ".jpg"),
    ]


def _row(name: str, title: str, credit: str, size: tuple[int, int], suffix: str) -> schemas.SampleRow:
    # No leading slash: a proxy may serve this service under a path prefix.
    address = f"{SAMPLES}/{name}".lstrip("/")
    width, height = size
    return schemas.SampleRow(
        name=name, title=title, credit=credit, width=width, height=height, address=address, file=f"{name}{suffix}"
    )
