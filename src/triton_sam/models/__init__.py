"""What models there are, and their files: the catalogue, downloads, checksums, the cache.

From outside: ``catalog`` and ``specs`` (rows), ``weights`` (the cache), the same for vision-language models.
It does not know how a model is run or served.
"""
