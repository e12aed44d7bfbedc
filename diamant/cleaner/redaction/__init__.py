"""A redaction on disk: its language, the search for its records, their rewriting, its claims."""
