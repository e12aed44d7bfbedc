"""The certifying scan of a whole data directory, and its account of what it covered."""
