"""What a broker runs on: topics, timers, flushes, pending fetches. Knows no API. Beside it the cleaner and the housekeeping."""
