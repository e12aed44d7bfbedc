"""Members of groups at work: the services of both protocols, their timers and what they write."""
