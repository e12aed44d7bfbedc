"""The hot requests and responses, encoded by hand."""
