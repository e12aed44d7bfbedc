"""Settings shared by the commands for files: of topics, the cleaner and Spark, with hints on their values."""
