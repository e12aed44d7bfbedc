"""Members at work, in both protocols: services that answer them, timers, and what they write."""
