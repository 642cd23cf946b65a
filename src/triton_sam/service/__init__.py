"""The HTTP service in front of Triton: it validates every request before Triton sees it.

From outside: ``app.create_app`` and ``uvicorn_thread.ServiceThread``. Only this package imports fastapi and uvicorn.
Layers: uvicorn_thread, app > routes, chat > triton_calls > gateway > admission > telemetry > api_tokens.
"""
