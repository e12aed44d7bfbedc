"""Where a round runs: a thread of the broker or a worker process."""
