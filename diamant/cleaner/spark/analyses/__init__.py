"""Analyses of log directories on Spark: stats, find, audit."""
