"""Readers and writers of segments for the cleaner and the tools."""
