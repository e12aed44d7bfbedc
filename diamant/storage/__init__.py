"""Storage in Apache Kafka's file formats. Errors, file names and properties are in this package, the rest in subpackages."""
