"""Shared by the Python scripts of this folder: the options of an export, and running `triton-sam`."""

from __future__ import annotations

import argparse
import sys

DEVICES = ("cpu", "cuda")
PRECISIONS = ("fp32", "fp16", "int8")


def export_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all families have; the defaults are those of `triton-sam export`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--checkpoint", metavar="FILE", help="default: the published one, downloaded if needed")
    parser.add_argument("--output-dir", metavar="DIR", help="the graphs' folder; default: that of `triton-sam export`")
    parser.add_argument("--image-size", metavar="N", type=int, help="side of the square input, model pixels")
    parser.add_argument("--device", choices=DEVICES, help="the device that torch runs on")
    parser.add_argument("--precision", choices=PRECISIONS, help="the graphs' number format")
    return parser


def export(model_id: str, options: argparse.Namespace) -> None:
    """Runs `triton-sam export` with the options that were given."""
    names = ("checkpoint", "output_dir", "image_size", "device", "precision")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    run_cli("export", model_id, *(f"--{name.replace('_', '-')}={value}" for name, value in given.items()))


def run_cli(*arguments: str) -> None:
    """Runs `triton-sam` in this Python."""
    try:
        from triton_sam.cli.app import main
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is not installed in this Python: use the one of the project's .venv/bin")
    sys.argv = ["triton-sam", *arguments]
    main()
