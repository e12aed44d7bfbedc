"""The cleaner on Apache Spark. Nothing here is imported before Spark is asked for."""
