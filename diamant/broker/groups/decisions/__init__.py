"""Decisions about consumer groups: the records and timers that a heartbeat, a departure or other topics lead to. Pure."""
