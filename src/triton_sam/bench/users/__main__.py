"""The same benchmark without the command line's packages: ``python -m triton_sam.bench.users --url http://host:8000``.

It measures a server that runs already, and needs numpy and Pillow only, as the model beside it does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from triton_sam.bench.figures import short
from triton_sam.bench.machine import commit, machine
from triton_sam.bench.pictures import SIDE, Pictures
from triton_sam.bench.users import outcome, running
from triton_sam.bench.users.generator import UsersLoad, let_work
from triton_sam.bench.users.schedule import Behaviour
from triton_sam.bench.users.worker import SERVICE, TRITON
from triton_sam.errors import TritonSamError


def _arguments(words: list[str] | None) -> argparse.Namespace:
    default = UsersLoad()
    parser = argparse.ArgumentParser(
        "python -m triton_sam.bench.users", description="Many people at work on one server."
    )
    parser.add_argument("--url", required=True, help="address of Triton, or of the service")
    parser.add_argument("--through", choices=(SERVICE, TRITON), default=TRITON, help="what answers there")
    parser.add_argument("--model", default="sam2", help="name of the model on the server, or its id")
    parser.add_argument("--users", type=int, default=default.users, help="people at the same time")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="how long they work")
    parser.add_argument("--processes", type=int, help="load-generating ones; default: by cores")
    parser.add_argument("--in-flight", type=int, default=default.in_flight, help="hovers of a person, at most")
    parser.add_argument("--image-every", type=float, default=Behaviour().image_seconds, help="seconds of an image")
    parser.add_argument("--image", type=Path, help="an image file; default: a photograph of --side pixels")
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--token", default="", help="API token of the service")
    parser.add_argument("--output", type=Path, help="a .json file for the result")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    given = _arguments(words)
    try:
        load = UsersLoad(
            given.users,
            given.seconds,
            given.through,
            given.processes,
            given.in_flight,
            Behaviour(image_seconds=given.image_every),
        )
        address = running.parse_url(given.url, load.through)
        name = running.find_model(address, load.through, given.model)
        pictures = Pictures(given.image, given.side)
        generated = let_work(load, address, name, pictures, given.token)
    except TritonSamError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    figures, notes = outcome.figures(load, generated), outcome.notes(load, generated)
    about = {"model": given.model, "image": pictures.about, "server": given.url, "load": outcome.about(load)}
    for note in (about["load"], *notes):
        sys.stdout.write(f"{note}\n")
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        sys.stdout.write(f"{figure.name:{width}}  {short(figure.value):>7} {figure.unit:4} {figure.detail}\n")
    if given.output is not None:
        result = {
            "name": "users",
            "command": "python -m triton_sam.bench.users",
            "commit": commit(),
            "about": about,
            "notes": notes,
            "machine": machine(),
            "figures": [dataclasses.asdict(figure) for figure in figures],
            "series": [dataclasses.asdict(each) for each in outcome.series(generated)],
        }
        given.output.write_text(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
