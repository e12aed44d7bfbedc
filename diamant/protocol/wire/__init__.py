"""Frames, API versions, error codes and the codecs driven by schemas."""
