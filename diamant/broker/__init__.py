"""The broker: listener, handlers, topics, configuration and the command line, on top of storage and cleaner."""
