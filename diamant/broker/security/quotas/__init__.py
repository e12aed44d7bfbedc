"""Quotas: how much of the broker a client may take, and how long it has to wait when it takes more."""
