"""The basis of a broker: timers, flushes, pending fetches, the cleaner and housekeeping. It knows no API."""
