"""Principals: the names that authentication gives to clients, and that authorization and quotas look at."""
