"""Compactions on request: by a call, by a configuration; how far they are, and what topics show of them."""
