"""Observability: metrics, request ids, the access log and traces.

From outside: ``middleware``, ``metrics``, ``request_context``, ``access_log``, ``tracing``. It must not decide anything
about a request.
"""
