"""Explanations of why a record is still in a log, and until when."""
