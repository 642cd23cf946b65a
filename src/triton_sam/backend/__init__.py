"""The Python models that Triton runs. Imported by the backend's own process, never by clients."""
