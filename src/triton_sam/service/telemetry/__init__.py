"""What the service says about itself: metrics, request ids, log lines, traces.

From outside: ``metrics``, ``visits`` (one request), ``tracing``. It decides nothing about a request.
"""
