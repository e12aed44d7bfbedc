"""Decisions about groups of KIP-848: the records and timers that a heartbeat or a departure leads to. Pure."""
