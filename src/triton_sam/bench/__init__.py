"""Benchmarks that users run on their own machine: ``triton-sam bench``.

From outside: the ``measure_*`` functions, which the command line calls. ``benchmarks/``, outside the
wheel, measures what only the project asks; it uses ``target``, ``samples``, ``figures``, ``results`` and ``publish``.
"""
