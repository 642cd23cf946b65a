"""The page with a stand-in for the service: discs around points, at once, so that only the page is measured."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, WebSocket
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocketDisconnect

from triton_sam.core.rle import BoolArray, rle
from triton_sam.errors import ServerError
from triton_sam.models.catalog import DEFAULT_MODEL
from triton_sam.server import host
from triton_sam.service.routes.page import page_router

_KEY = "0" * 64
_MODEL = {"id": DEFAULT_MODEL, "name": "sam2", "title": "Discs", "licence": "", "default": True, "prompts": ["points"]}


@contextlib.contextmanager
def instant_service(side: int, radius: float) -> Iterator[str]:
    """The address of the page, for images of ``side`` x ``side`` pixels; masks are discs of about ``radius`` pixels."""
    port = host.free_port("127.0.0.1")
    config = uvicorn.Config(_app(side, radius), "127.0.0.1", port, log_level="warning", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="instant service", daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise ServerError(f"the stand-in for the service cannot listen on port {port}")
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def _app(side: int, radius: float) -> FastAPI:
    app = FastAPI()
    app.include_router(page_router())
    fixed: dict[str, Any] = {
        "/models": [_MODEL],
        "/samples": [],
        "/health": {"state": "ready"},
        "/v1/models": {"data": []},
        "/v1/limits": {"max_image_bytes": 10**9, "max_image_pixels": 10**9, "max_points": 256, "max_objects": 64},
    }
    for path, document in fixed.items():
        app.add_api_route(path, lambda document=document: JSONResponse(document))

    async def images(request: Request) -> Response:
        await request.body()
        return JSONResponse({"image_key": _KEY, "width": side, "height": side})

    async def segment(request: Request) -> Response:
        return JSONResponse(_result(await request.json(), side, radius))

    async def hover(socket: WebSocket) -> None:
        await socket.accept("triton-sam")
        try:
            while True:
                message = await socket.receive_json()
                await socket.send_json({"id": message["id"], "result": _result(message, side, radius)})
        except WebSocketDisconnect:
            pass

    app.add_api_route("/v1/images", images, methods=["POST"])
    app.add_api_route("/v1/segment", segment, methods=["POST"])
    app.add_api_websocket_route("/v1/hover", hover)
    return app


def _result(prompt: dict[str, Any], side: int, radius: float) -> dict[str, Any]:
    sizes = (radius, 0.7 * radius, 1.4 * radius) if prompt["multimask"] else (radius,)
    head = {"encoding": "rle", "width": side, "height": side}
    masks = [
        head | {"data": rle(_discs(prompt, side, size)), "score": 0.9 - 0.1 * number}
        for number, size in enumerate(sizes)
    ]
    return {"masks": masks, "timings_ms": {"total": 1.0}, "image_key": _KEY, "model": DEFAULT_MODEL}


def _discs(prompt: dict[str, Any], side: int, radius: float) -> BoolArray:
    """With a wavy border, as masks of photographs have it. Later points win."""
    mask = np.zeros((side, side), np.bool_)
    x0, y0, x1, y1 = prompt.get("box", (0, 0, 0, 0))
    points = prompt.get("points", [((x0 + x1) / 2, (y0 + y1) / 2)])
    for (x, y), label in zip(points, prompt.get("labels", [1]), strict=True):
        left, top = max(0, int(x - 2 * radius)), max(0, int(y - 2 * radius))
        rows, columns = np.mgrid[top : min(side, int(y + 2 * radius)), left : min(side, int(x + 2 * radius))]
        border = radius * (1 + 0.15 * np.sin(9 * np.arctan2(rows - y, columns - x)))
        inside = np.hypot(rows - y, columns - x) < border
        part = mask[rows[0, 0] : rows[-1, -1] + 1, columns[0, 0] : columns[-1, -1] + 1]
        part[inside] = bool(label)
    return mask
