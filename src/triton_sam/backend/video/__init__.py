"""Video sessions: objects that are remembered from frame to frame. May be imported by the rest of ``backend``."""
