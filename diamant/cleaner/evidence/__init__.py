"""Evidence that data is gone: searches, scans and certificates."""
