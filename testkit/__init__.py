"""Tools that the tests and the benchmarks share.

They import neither ``tests`` nor ``benchmarks``, and they are not part of the wheel.
"""
