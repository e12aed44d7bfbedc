"""`diamant log`: commands for the files of a log directory."""
