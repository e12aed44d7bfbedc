"""Handlers for the cluster and its features."""
