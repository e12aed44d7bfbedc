"""Schedules of compactions, for tests of consumers of compacted topics."""
