"""Storage in Apache Kafka's file formats. Errors, file names and properties are here; the rest is in subpackages."""
