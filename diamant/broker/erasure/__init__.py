"""Erasures and redactions: the queue of jobs, their steps and their certificates."""
