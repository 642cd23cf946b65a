"""Benchmarks that answer questions of the project itself: ``python -m benchmarks NAME``, in a checkout.

One file for each question. They build on ``triton_sam.bench``, whose commands are for users, and they are not part of
the wheel.
"""
