"""The cleaner on Apache Spark. Its modules are only imported when Spark is used."""
