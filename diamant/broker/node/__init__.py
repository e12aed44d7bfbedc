"""The foundation of a broker: timers, flushes, pending fetches, the cleaner and housekeeping. It does not depend on any API."""
