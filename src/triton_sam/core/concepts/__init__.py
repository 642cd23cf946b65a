"""Concepts: words and examples that name things, and the instances of them that are found in an image."""
