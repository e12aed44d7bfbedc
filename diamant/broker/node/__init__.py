"""What a broker runs on: topics, timers, flushes, pending fetches, the cleaner. Knows no API."""
