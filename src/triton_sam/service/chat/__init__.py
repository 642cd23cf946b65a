"""Chat completions about images in OpenAI's format: requests, responses, streaming.

From outside: ``completions.chat_router`` and ``schemas``. It must not know segmenters.
"""
