"""Compaction on demand: the request, its rounds, and the report."""
