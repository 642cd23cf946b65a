"""The HTTP service in front of Triton: it validates every request before Triton sees it.

From outside: ``app.create_app``, ``uvicorn_thread.ServiceThread`` and ``process_pool.ServiceProcesses``. Only this
package imports fastapi and uvicorn. Layers: process_pool > service_process > uvicorn_thread > app > routes, chat >
triton_calls > gateway > admission > telemetry > api_tokens.
"""
