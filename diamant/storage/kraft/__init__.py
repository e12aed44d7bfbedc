"""The metadata log, and the image built from its records."""
