"""Papers: one certificate of a person's request, whose parts are those of its erasures and redactions."""
