"""The HTTP port: the API, metrics, health, and the page."""
