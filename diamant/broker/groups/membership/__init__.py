"""Members of both protocols at work: the services that answer them, timers, and writes."""
