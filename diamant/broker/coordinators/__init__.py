"""Shared parts of the group and transaction coordinators: internal topics and their loading."""
