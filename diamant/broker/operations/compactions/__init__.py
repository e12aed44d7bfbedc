"""Compactions on request: by a call or a configuration; their progress, and figures of topics."""
