"""The basis of a broker: topics, timers, flushes, pending fetches; the cleaner and the housekeeping. Knows no API."""
