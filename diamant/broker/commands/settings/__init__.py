"""Settings that commands on files share: of topics, of the cleaner and of Spark, and hints on their values."""
