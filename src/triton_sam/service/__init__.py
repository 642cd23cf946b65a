"""The HTTP front door beside Triton."""
