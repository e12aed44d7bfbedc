"""The views of the page: one module for each, with its routes."""
