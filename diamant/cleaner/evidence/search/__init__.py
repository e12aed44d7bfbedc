"""Searching files and records for needles, and proof that the search sees."""
