"""People: maps of their data, their records in all topics, and requests to forget them, each with one certificate, the paper."""
