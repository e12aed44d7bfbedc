"""Copies of a running broker: forks, snapshots and the way back to one."""
