"""Quotas: limits on the use of the broker, and the throttle time of clients that exceed them."""
