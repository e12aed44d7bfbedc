"""The queue of jobs: one runs at a time, resumes after any stop, and is cancelled on request."""
