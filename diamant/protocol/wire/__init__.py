"""Frames, API versions, error codes and schema-driven codecs."""
