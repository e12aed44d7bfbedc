"""People in topics: the map that says where a person's data is, and the identifiers that lead from topic to topic."""
