#!/usr/bin/env python3
"""Downloads the ready-made ONNX graphs of SAM 3's tracker: `triton-sam pull sam3:full --onnx`."""

from __future__ import annotations

import argparse

from _export_script import run_cli

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    run_cli("pull", "sam3:full", "--onnx")
