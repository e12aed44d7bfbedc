"""Parts that commands share: asking a broker, options, output, exit codes."""
