"""The command line of `diamant`, one file per command, imported when it runs."""
