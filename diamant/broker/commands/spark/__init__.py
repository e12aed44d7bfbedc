"""`diamant spark`: commands for log directories of any size."""
