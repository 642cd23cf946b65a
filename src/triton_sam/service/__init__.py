"""The HTTP service in front of Triton: it checks what comes from a network before Triton sees it.

From outside: ``app.create_app`` and ``thread.ServiceThread``. Only here: fastapi and uvicorn.
Layers: thread, app > routes, chat > calls > gateway > admission > telemetry > tokens.
"""
