"""Compaction on demand: a request, its rounds, its report."""
