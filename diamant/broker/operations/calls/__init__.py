"""Shared parts of operations: the progress of a call, work in threads, calls between two loops."""
