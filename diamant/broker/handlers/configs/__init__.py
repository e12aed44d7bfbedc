"""Handlers for configurations and quotas."""
