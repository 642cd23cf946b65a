"""The networks in torch, as the exporter and the torch engine both build them.

From outside: ``segmenters``. Needs torch and transformers; it knows no checkpoint and no server.
"""
