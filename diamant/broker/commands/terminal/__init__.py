"""What commands share: asking a broker, options, output, exit codes."""
