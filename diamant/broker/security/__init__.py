"""Security: who a client is, what it may do, and how much of it."""
