"""``python -m triton_sam.cli`` is ``triton-sam``."""

from triton_sam.cli.app import main

main()
