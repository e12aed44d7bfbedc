"""The audit log: a line for every request that changes data, whichever port it came to."""
