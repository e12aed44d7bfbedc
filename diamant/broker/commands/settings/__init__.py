"""Settings of topics, the cleaner and Spark for the commands that work on files, with hints about invalid values."""
