"""Redactions on disk: the language, the search for records, their rewriting, and the claims."""
