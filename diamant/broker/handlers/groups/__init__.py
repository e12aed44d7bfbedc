"""Handlers of groups and offsets."""
