"""The broker as it runs, over HTTP: health, status, history, clock, faults, snapshots."""
