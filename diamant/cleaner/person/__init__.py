"""People in topics: the map of where their data is, and the identifiers that lead from topic to topic."""
