#!/usr/bin/env python3
"""Exports a checkpoint of SAM 1 to ONNX: `triton-sam export` with the option names of Meta's own script."""

from __future__ import annotations

from _export_script import export, export_parser

IDS = {"vit_b": "sam1:vit_b", "vit_l": "sam1:vit_l", "vit_h": "sam1:vit_h", "vit_t": "sam1:mobile"}


def main() -> None:
    parser = export_parser(__doc__)
    parser.add_argument(
        "--model-type", choices=IDS, help="default: recognised from the checkpoint; vit_h if none is given"
    )
    options = parser.parse_args()
    unnamed = "auto" if options.checkpoint else IDS["vit_h"]
    export(IDS.get(options.model_type, unnamed), options)


if __name__ == "__main__":
    main()
