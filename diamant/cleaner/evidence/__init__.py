"""Evidence that data is gone: search, scan, certificates."""
