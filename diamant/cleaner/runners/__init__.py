"""The runners of a round: a thread of the broker or a worker process."""
