"""The catalogue of models and their files: downloads, checksums, the cache.

From outside: ``catalog`` and ``specs`` (rows), ``weights`` (the cache), the same for vision-language models.
It does not know how a model is run or served.
"""
