"""Clips: reading videos of any kind frame by frame, and writing what was found in them.

Knows no server and no model. Only this package imports PyAV, and only when a video file is read or written.
"""
