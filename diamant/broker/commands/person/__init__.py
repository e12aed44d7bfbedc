"""Commands on the data of a person in all topics."""
