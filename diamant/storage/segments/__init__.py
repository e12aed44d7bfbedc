"""One segment of a log and its three indexes."""
