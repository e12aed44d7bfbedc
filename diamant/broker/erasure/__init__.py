"""Erasures and redactions: the queue of jobs, their steps, their certificates."""
