"""Removals: the queue of their jobs, the parts that erasures and redactions share, and their cancellation."""
