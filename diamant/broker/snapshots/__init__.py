"""Copies of a running broker: forks and snapshots."""
