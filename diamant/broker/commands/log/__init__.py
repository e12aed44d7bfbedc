"""`diamant log`: commands on the files of a log directory."""
