"""The metrics of `/metrics`."""
