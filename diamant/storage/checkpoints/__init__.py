"""The small files of a log directory."""
