"""People: the records of a person in all topics, found, shown and mapped, and forgotten with one certificate, the paper."""
