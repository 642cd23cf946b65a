"""A small SAM 3 that understands a few words, and the drawn scenes that it learns them from."""
