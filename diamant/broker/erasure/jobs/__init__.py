"""The parts that erasures and redactions share: the queue of their jobs, cancellation, and the issue of certificates."""
