"""Compact now and wait: a request, its rounds, its report."""
