"""Handlers of configurations and quotas."""
