"""The audit log: a line for every request that changes data, on any port."""
