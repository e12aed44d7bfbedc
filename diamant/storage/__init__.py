"""One log directory in Apache Kafka's own file formats; errors, file names and properties here, the rest in folders."""
