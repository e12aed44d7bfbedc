"""Handlers of the cluster and its features."""
