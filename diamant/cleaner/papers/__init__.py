"""Papers: certificates of persons' requests. The parts of a paper are the certificates of its erasures and redactions."""
