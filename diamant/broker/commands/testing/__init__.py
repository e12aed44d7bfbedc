"""Commands for tests of clients: the brokers of one process."""
