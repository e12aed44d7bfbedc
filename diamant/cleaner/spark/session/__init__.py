"""A Spark session with the data source registered."""
