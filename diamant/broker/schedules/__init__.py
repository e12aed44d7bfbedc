"""Schedules of compactions: what a consumer of a compacted topic may meet, for tests."""
