#!/usr/bin/env python3
"""Exports a checkpoint of SAM 2 or 2.1 to ONNX: `triton-sam export` with Meta's names for the networks."""

from __future__ import annotations

import re
from pathlib import PurePath

from _export_script import export, export_parser

VARIANTS = {"t": "tiny", "s": "small", "b+": "base_plus", "l": "large"}
CONFIG = re.compile(r"(sam2|sam2\.1)_hiera_(t|s|b\+|l)(\.yaml)?")


def main() -> None:
    parser = export_parser(__doc__)
    parser.add_argument(
        "--model-cfg",
        metavar="YAML",
        help="for example configs/sam2.1/sam2.1_hiera_b+.yaml; default: recognised from the checkpoint; SAM 2.1 "
        "base_plus if none is given",
    )
    options = parser.parse_args()
    model_id = "auto" if options.checkpoint else "sam2.1:base_plus"
    if options.model_cfg is not None:
        found = CONFIG.fullmatch(PurePath(options.model_cfg).name)
        if found is None:
            known = "sam2_hiera_X.yaml and sam2.1_hiera_X.yaml with X = t, s, b+ or l"
            parser.exit(2, f"error: {options.model_cfg!r} is not a config of an image network: known are {known}\n")
        model_id = f"{found[1]}:{VARIANTS[found[2]]}"
    export(model_id, options)


if __name__ == "__main__":
    main()
