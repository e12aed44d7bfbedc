"""Decisions about groups of KIP-848: the records and timers that follow from a heartbeat or a departure. Pure."""
