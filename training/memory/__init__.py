"""Trains the memory of ``sam2:tiny_video`` on generated clips, and measures it."""
