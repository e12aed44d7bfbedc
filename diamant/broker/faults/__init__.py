"""Fault injection: errors, delays and wrong responses on demand, for tests."""
