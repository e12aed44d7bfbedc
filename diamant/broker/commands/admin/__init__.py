"""Commands for a running broker."""
