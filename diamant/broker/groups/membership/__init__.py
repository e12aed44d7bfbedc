"""Members of all protocols at work: the services that answer them, timers, and writes."""
