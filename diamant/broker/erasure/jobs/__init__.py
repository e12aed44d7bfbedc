"""Removals: the queue of their jobs, their cancellation, and other parts that erasures and redactions share."""
