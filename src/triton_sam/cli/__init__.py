"""The command line. One command calls one function of the packages below and prints what it returns.

From outside: :func:`main`, the entry point ``triton-sam``. Nothing below imports this package.
"""

from triton_sam.cli.app import main

__all__ = ["main"]
