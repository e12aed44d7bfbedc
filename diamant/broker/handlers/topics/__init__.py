"""Handlers of topics and metadata."""
