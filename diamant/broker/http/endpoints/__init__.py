"""The endpoints, one file per family of paths."""
