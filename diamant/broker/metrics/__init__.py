"""The metrics that `/metrics` exposes."""
