"""The basis of a broker: timers, flushes, pending fetches, the cleaner and housekeeping. Knows no API."""
