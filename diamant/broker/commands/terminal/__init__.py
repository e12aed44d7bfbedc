"""Parts shared by commands: calls to a broker, options, output, exit codes."""
