"""Papers: the certificates of persons' requests, whose parts are the certificates of their erasures and redactions."""
