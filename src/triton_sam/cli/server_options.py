"""Options of the commands that use a running server."""

from __future__ import annotations

from typing import Annotated

import typer

UrlOption = Annotated[
    str | None,
    typer.Option(help="Address of Triton or of the service (http://host:8080); default TRITON_URL or localhost:8000."),
]
TokenOption = Annotated[
    str | None, typer.Option(help="API token of the service; default TRITON_SAM_TOKEN, which other users cannot see.")
]
