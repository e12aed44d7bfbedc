"""Fuzzing: requests, files and documents that are nearly right, against whole brokers and parsers."""
