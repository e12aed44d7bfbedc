"""The running broker over HTTP: health, status, history, clock, faults, snapshots."""
