"""The metrics that `/metrics` shows."""
