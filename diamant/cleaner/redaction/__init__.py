"""A redaction on disk: its language, where its records are, how they are rewritten, its claims."""
