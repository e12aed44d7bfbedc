"""People: the records of a person over all topics, found, shown, mapped, and forgotten on one paper."""
