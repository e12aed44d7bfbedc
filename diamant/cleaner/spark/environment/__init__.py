"""What Spark needs around it: Java, shipped code, locations, settings, errors."""
