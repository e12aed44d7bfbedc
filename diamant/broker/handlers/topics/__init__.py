"""Handlers for topics and metadata."""
