"""The Spark runner in the broker, and its driver process."""
