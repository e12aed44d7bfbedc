"""Commands for the data of a person in all topics."""
