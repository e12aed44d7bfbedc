"""Storage in Apache Kafka's file formats; errors, file names and properties are here, the rest in folders."""
