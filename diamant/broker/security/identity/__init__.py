"""Principals: the identities that authentication assigns to clients, for authorization and quotas."""
