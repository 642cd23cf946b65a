"""Admission control: API tokens, rate limits, request sizes and timeouts, concurrency, connections, TLS.

From outside: the middleware and limits that ``service.app``, ``service.uvicorn_thread`` and the gateway put before the
routes. It must not know any route.
"""
