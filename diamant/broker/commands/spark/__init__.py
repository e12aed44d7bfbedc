"""`diamant spark`: commands on log directories of any size."""
