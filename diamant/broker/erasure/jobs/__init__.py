"""The queue of jobs: one at a time, found again after any stop, cancelled on request."""
