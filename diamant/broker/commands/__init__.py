"""The `diamant` command line: one module per command, each imported only when its command runs."""
