"""The environment that Spark needs: Java, shipped code, locations, settings, errors."""
