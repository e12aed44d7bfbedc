"""Handlers for groups and offsets."""
