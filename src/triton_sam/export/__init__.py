"""From what is downloaded to what is served."""
