"""Questions about images in OpenAI's format: request, answer, stream.

From outside: ``completions.chat_router`` and ``schemas``. It knows no segmenter.
"""
