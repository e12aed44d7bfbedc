"""The views of the page, one module each, and the table of their routes."""
