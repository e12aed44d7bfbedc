"""The basis of a broker: timers, flushes, pending fetches; the cleaner and the housekeeping. Knows no API."""
