#!/usr/bin/env python3
"""Exports the image part of SAM 3's tracker to ONNX: `triton-sam export sam3:full`."""

from __future__ import annotations

from _export_script import export, export_parser

if __name__ == "__main__":
    export("sam3:full", export_parser(__doc__).parse_args())
