"""Schedules of compactions, played between fetches."""
