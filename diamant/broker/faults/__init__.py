"""Faults on demand: what the broker does wrong because a test has asked for it."""
