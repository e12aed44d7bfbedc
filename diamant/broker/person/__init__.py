"""People: the records of a person over all topics, found, shown and mapped."""
