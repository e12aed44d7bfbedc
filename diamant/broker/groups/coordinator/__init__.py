"""The group coordinator: offsets, loading, timers, and the services of both protocols."""
