"""What users measure on their own machine: ``triton-sam bench``.

From outside: the ``measure_*`` functions, which the command line calls. The project's own questions are measured in
``benchmarks/``, outside the package.
"""
