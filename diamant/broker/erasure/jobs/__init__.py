"""The queue of jobs: one at a time, resumed after any stop, cancelled on request."""
