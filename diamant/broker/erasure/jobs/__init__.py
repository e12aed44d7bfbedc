"""The parts that erasures and redactions share: the queue of jobs, cancelling them, and issuing certificates."""
