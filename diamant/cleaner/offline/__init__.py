"""Tools on a log directory without a broker."""
